"""Rules of every language over small data, and flights whose delays pandas finds as well."""

from __future__ import annotations

import random
from typing import Any

import pandas as pd
import pyarrow as pa

from tests.datasets.shapes import ALL, BOTH, SECOND, Case, at, times

READINGS = pa.table(
    {
        "type": ["Temp", "Temp", "Temp", "Smoke", "Rain", "Temp", "Smoke"],
        "ts": times(0, 60, 120, 180, 200, 240, 300),
        "area": ["A", "A", "B", "A", "A", "A", "A"],
        "value": [46.0, 51.0, 60.0, None, None, 47.0, None],
    }
)


def flights(rows: int) -> pd.DataFrame:
    """Departures, some of them late, from a few airports; some have no delay."""
    rng = random.Random(7)
    airports, carriers = ["JFK", "LGA", "EWR"], ["AA", "B6", "DL", "UA"]
    return pd.DataFrame(
        {
            "ts": [at(rng.randrange(86_400)) for _ in range(rows)],
            "origin": [rng.choice(airports) for _ in range(rows)],
            "carrier": [rng.choice(carriers) for _ in range(rows)],
            "flight": [rng.randrange(1, 400) for _ in range(rows)],
            "delay": [None if rng.random() < 0.05 else float(rng.randrange(-10, 120)) for _ in range(rows)],
        }
    )


FLIGHTS = flights(3_000)


def flights_table() -> pa.Table:
    table = pa.Table.from_pandas(FLIGHTS.assign(type="Departure"), preserve_index=False)
    return table.set_column(0, "ts", table["ts"].cast(pa.timestamp("us", "UTC")))


def late_flights() -> list[tuple[str, int, dict[str, Any]]]:
    late = FLIGHTS[FLIGHTS.delay > 100]
    return [
        ("Late", row.ts, {"origin": row.origin, "flight": row.flight, "delay": row.delay}) for row in late.itertuples()
    ]


def chains() -> list[tuple[str, int, dict[str, Any]]]:
    """A flight that is late by more than 60 after another of the same carrier and airport, less than ten minutes
    before, that was so too."""
    late = FLIGHTS[FLIGHTS.delay > 60]
    both = late.merge(late, on=["origin", "carrier"], suffixes=("", "_before"))
    gap = both.ts - both.ts_before
    near = both[(gap > 0) & (gap < 600 * SECOND)]
    return [("Chain", row.ts, {"first": row.flight_before, "then": row.flight}) for row in near.itertuples()]


def means() -> list[tuple[str, int, dict[str, Any]]]:
    """At each very late flight, the flights of the hour before from that airport, and their mean delay."""
    found: list[tuple[str, int, dict[str, Any]]] = []
    for row in FLIGHTS[FLIGHTS.delay > 115].itertuples():
        gap = row.ts - FLIGHTS.ts
        before = FLIGHTS[(FLIGHTS.origin == row.origin) & (gap > 0) & (gap < 3600 * SECOND)].delay
        mean = before.sum() / before.count() if before.count() else None
        found.append(("Hour", row.ts, {"flights": len(before), "mean": mean}))
    return found


RULES = [
    Case(
        "flights that are late",
        """
        define Late(origin: string, flight: long, delay: double)
        from   Departure(delay > 100)
        where  origin = Departure.origin, flight = Departure.flight, delay = Departure.delay
        """,
        flights_table(),
        late_flights(),
    ),
    Case(
        "flights that are late after others",
        """
        define Chain(first: long, then: long)
        from   Departure(delay > 60, origin = $o, carrier = $c) as now and
               each Departure(delay > 60, origin = $o, carrier = $c) as before within 10 min from now
        where  first = before.flight, then = now.flight
        """,
        flights_table(),
        chains(),
        core=ALL,
    ),
    Case(
        "the mean delay of an hour",
        """
        define Hour(flights: long, mean: double)
        from   Departure(delay > 115, origin = $o) and
               $n = Count(Departure(origin = $o) within 1 h from Departure) and
               $m = Avg(Departure(origin = $o).delay within 1 h from Departure)
        where  flights = $n, mean = $m
        """,
        flights_table(),
        means(),
    ),
    Case(
        "two rules that define one event",
        """
        rule   Hot
        define Alarm(area: string, value: double) from Temp(value > 50) where area = Temp.area, value = Temp.value
        rule   Wet
        define Alarm(area: string, value: double) from Rain() where area = Rain.area, value = 0.5
        """,
        READINGS,
        [
            ("Hot", at(60), {"area": "A", "value": 51.0}),
            ("Hot", at(120), {"area": "B", "value": 60.0}),
            ("Wet", at(200), {"area": "A", "value": 0.5}),
        ],
    ),
    Case(
        "two rules with outputs of one name",
        """
        define Hot(area: string, v: double) from Temp(value > 50) where area = Temp.area, v = Temp.value
        define Fire(v: double, area: string)
        from   Smoke(area=$a) and last Temp(area=$a, value>45) within 5 min from Smoke
        where  area = Smoke.area, v = Temp.value
        """,
        READINGS,
        [
            ("Hot", at(60), {"area": "A", "v": 51.0}),
            ("Hot", at(120), {"area": "B", "v": 60.0}),
            ("Fire", at(180), {"area": "A", "v": 51.0}),
            ("Fire", at(300), {"area": "A", "v": 47.0}),
        ],
    ),
    Case(
        "a rule over a rule",
        """
        define Fire(area: string)
        from   Smoke(area=$a) and last Temp(area=$a, value>45) within 5 min from Smoke
        where  area = Smoke.area
        define Again(area: string)
        from   Fire(area=$a) as now and last Fire(area=$a) as before within 5 min from now
        where  area = now.area
        """,
        READINGS,
        [("Fire", at(180), {"area": "A"}), ("Fire", at(300), {"area": "A"}), ("Again", at(300), {"area": "A"})],
        core=BOTH,
    ),
    Case(
        "what did not happen",
        """
        define Dry(area: string, v: double)
        from   Smoke(area=$a) and last Temp(area=$a) within 5 min from Smoke and
               not Rain(area=$a) between Temp and Smoke
        where  area = Smoke.area, v = Temp.value
        """,
        READINGS,
        [("Dry", at(180), {"area": "A", "v": 51.0}), ("Dry", at(300), {"area": "A", "v": 47.0})],
    ),
    Case(
        "events that are used up",
        """
        define Fire(v: double)
        from   Smoke() and each Temp(value < 50) within 10 min from Smoke
        where  v = Temp.value
        consuming Temp
        """,
        READINGS,
        [("Fire", at(180), {"v": 46.0}), ("Fire", at(300), {"v": 47.0})],
    ),
    Case(
        "SiddhiQL: a window of rows",
        """
        define stream Temp (area string, value double);
        @info(name = 'Mean')
        from Temp#window.length(2) select area, avg(value) as mean group by area insert into Mean;
        """,
        READINGS,
        [
            ("Mean", at(0), {"area": "A", "mean": 46.0}),
            ("Mean", at(60), {"area": "A", "mean": 48.5}),
            ("Mean", at(120), {"area": "B", "mean": 60.0}),
            ("Mean", at(240), {"area": "A", "mean": 47.0}),
        ],
        core=BOTH,
    ),
    Case(
        "SiddhiQL: a window of time",
        """
        define stream Temp (area string, value double);
        @info(name = 'Most')
        from Temp#window.time(90 sec) select max(value) as most, count() as n insert into Most;
        """,
        READINGS,
        [
            ("Most", at(0), {"most": 46.0, "n": 1}),
            ("Most", at(60), {"most": 51.0, "n": 2}),
            ("Most", at(120), {"most": 60.0, "n": 2}),
            ("Most", at(240), {"most": 47.0, "n": 1}),
        ],
        until=at(301),
    ),
    Case(
        "SiddhiQL: a pattern",
        """
        define stream Temp (area string, value double);
        define stream Smoke (area string);
        @info(name = 'Fire')
        from every t=Temp[value > 50] -> s=Smoke[area == t.area] within 5 min
        select s.area as area, t.value as temp insert into Fire;
        """,
        READINGS,
        [("Fire", at(180), {"area": "A", "temp": 51.0})],
    ),
    Case(
        "a request for events in order",
        """
        request Fire
        on      Temp as t ; Smoke as s
        if      t.area = s.area and t.value > 50
        within  5 min
        notify  "fire"
        """,
        READINGS,
        [("Fire", at(180), {"notification": "fire"})],
        core=BOTH,
    ),
    Case(
        "a request for events that repeat",
        """
        request Guessed
        on      TimesEq(3, Failed as f, ip) ; Accepted as a
        if      f.ip = a.ip
        within  5 min
        notify  "a password was guessed"
        """,
        pa.table(
            {
                "type": ["Failed", "Failed", "Failed", "Failed", "Accepted", "Accepted"],
                "ts": times(0, 1, 2, 3, 9, 10),
                "ip": ["x", "x", "y", "x", "x", "x"],
            }
        ),
        [("Guessed", at(9), {"notification": "a password was guessed"})],
    ),
    Case(
        "an interest around an object that moves",
        """
        define    Jam(cars: long)
        from      Brake() and $n = Count(Brake() within 10 s from Brake)
        where     cars = $n

        interest  Ahead
        of        Jam
        around    Position(car="c1")
        range     rectangle 300 m by 300 m
        lifetime  30 s
        update    every 10 s
        """,
        pa.table(
            {
                "type": ["Position", "Brake", "Brake", "Position"],
                "ts": times(0, 5, 7, 20),
                "car": ["c1", "c7", "c8", "c1"],
                "x": [0.0, 410.0, 420.0, 300.0],
                "y": [0.0, 0.0, 5.0, 0.0],
            }
        ),
        [
            ("Marker", at(0), {"query": "Ahead", "range": 1}),
            ("Marker", at(20), {"query": "Ahead", "range": 2}),
            ("Jam", at(5), {"query": "Ahead", "range": 2, "cars": 0}),
            ("Jam", at(7), {"query": "Ahead", "range": 2, "cars": 1}),
        ],
        core=ALL,
    ),
]
