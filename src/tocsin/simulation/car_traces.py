"""Generate traces of cars on a street grid from a seed, or read traces that SUMO has written.

A car drives along the streets to a random junction, and then chooses the next junction. It publishes each change of its
acceleration or steering with its location. Now and then there is an accident, and for a minute the cars that come near
it brake hard and swerve. A query that follows a car also gets the positions of the car as events.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tocsin.errors import EventError
from tocsin.events.types import SECOND_US, Event
from tocsin.plans.moving import Coordinates

BLOCK_M = 100.0
SPEED_MPS = 12.0
NEAR_M = 40.0
"""The distance to an accident within which cars brake and swerve."""
ACCIDENT_S = 60
HARD_MPS2 = -6.0

RULES = """
event Acceleration(car: string, a: double, x: double, y: double)
event Steering(car: string, angle: double, x: double, y: double)

define    Swerve(car: string, x: double, y: double)
from      Steering(car=$c, angle<=-15.0)
          and each Steering(car=$c, angle>=15.0) as out within 3 s from Steering
where     car = $c, x = Steering.x, y = Steering.y

define    Brake(car: string, x: double, y: double)
from      Acceleration(car=$c, a<=-4.0)
          and each Acceleration(car=$c, a>=-2.0) as before within 5 s from Acceleration
where     car = $c, x = Acceleration.x, y = Acceleration.y

define    Accident(x: double, y: double)
from      Swerve(car=$c)
          and each Brake(car!=$c) within 10 s from Swerve
where     x = Swerve.x, y = Swerve.y
"""
"""The operators of Fig. 1 (b) of MCEP. An accident is a swerve of one car after another car has braked."""


CALM_RULES = (
    RULES.replace("15.0", "5.0").replace("3 s", "10 s").replace("a<=-4.0", "a<=-1.5").replace("a>=-2.0", "a>=-1.0")
)
"""The same rules with lower thresholds for SUMO traffic, which has no accidents."""
CHANGE_MPS2, TURN_DEGREES = 1.0, 5.0
"""The least changes that a SUMO car publishes. With them, a thousand cars have about 330 events a second."""


@dataclass(frozen=True)
class Trace:
    """The events of all cars in a city, in order of time, and the location of each car in each second."""

    width_m: float
    height_m: float
    events: tuple[Event, ...]
    ways: dict[str, list[tuple[int, Coordinates]]]
    """The way of each car as pairs of second and location."""

    def positions(self, car: str) -> list[Event]:
        """Return the positions of `car` as events of type `Position`, one for each second."""
        return [
            Event("Position", second * SECOND_US, {"car": car, "x": at[0], "y": at[1]}, id=f"p{car}.{second}")
            for second, at in self.ways[car]
        ]


@dataclass
class _Car:
    name: str
    at: Coordinates
    route: list[Coordinates]
    speed: float
    acceleration: float = 0.0
    swerving: int = 0


def street_trace(
    cars: int = 1000,
    seconds: int = 1000,
    seed: int = 0,
    width_m: float = 1500.0,
    height_m: float = 2000.0,
    accident_every_s: float = 20.0,
) -> Trace:
    """Generate a random-waypoint trace on a street grid, with about one event a second for four cars.

    >>> trace = street_trace(cars=40, seconds=10, seed=3)
    >>> len(trace.ways), trace == street_trace(cars=40, seconds=10, seed=3)
    (40, True)
    """
    rng = Random(f"streets {seed}")
    columns, rows = int(width_m / BLOCK_M), int(height_m / BLOCK_M)

    def junction() -> tuple[int, int]:
        return rng.randint(0, columns), rng.randint(0, rows)

    def route(begin: tuple[int, int]) -> list[Coordinates]:
        """Return the way to a random junction, as the corner at which a car turns and the junction itself."""
        end = junction()
        corner = (end[0], begin[1]) if rng.random() < 0.5 else (begin[0], end[1])
        return [(c * BLOCK_M, r * BLOCK_M) for c, r in (corner, end)]

    fleet = []
    for number in range(cars):
        begin = junction()
        location = (begin[0] * BLOCK_M, begin[1] * BLOCK_M)
        fleet.append(_Car(f"c{number}", location, route(begin), rng.uniform(0.6, 1.2) * SPEED_MPS))
    ways: dict[str, list[tuple[int, Coordinates]]] = {car.name: [] for car in fleet}
    events: list[Event] = []
    accidents: list[tuple[int, Coordinates]] = []

    def publish(second: int, car: _Car, type: str, name: str, value: float) -> None:
        # Within a second, cars publish at different times, so that the order of events does not depend on ids.
        ts = second * SECOND_US + rng.randrange(SECOND_US)
        attributes: dict[str, str | float] = {"car": car.name, name: round(value, 2)}
        attributes |= {"x": round(car.at[0], 1), "y": round(car.at[1], 1)}
        events.append(Event(type, ts, attributes, id=f"{type[0]}{car.name}.{second}"))

    for second in range(seconds):
        if rng.random() < 1 / accident_every_s:
            junction_at = junction()
            accidents.append((second + ACCIDENT_S, (junction_at[0] * BLOCK_M, junction_at[1] * BLOCK_M)))
        accidents = [(until, at) for until, at in accidents if until > second]
        for car in fleet:
            turned = _drive(car)
            if not car.route:
                car.route = route((round(car.at[0] / BLOCK_M), round(car.at[1] / BLOCK_M)))
            ways[car.name].append((second, car.at))
            alarmed = any(math.dist(car.at, at) < NEAR_M for _, at in accidents)
            if car.swerving:
                car.swerving -= 1
                publish(second, car, "Steering", "angle", -25.0 + rng.uniform(-5, 5))
            elif alarmed and car.acceleration > HARD_MPS2:
                car.acceleration, car.swerving = HARD_MPS2, 1
                publish(second, car, "Acceleration", "a", HARD_MPS2 + rng.uniform(-1, 1))
                publish(second, car, "Steering", "angle", 25.0 + rng.uniform(-5, 5))
            elif turned:
                publish(second, car, "Steering", "angle", rng.choice([-1, 1]) * rng.uniform(10, 20))
            elif rng.random() < 0.23:
                car.acceleration = rng.uniform(-2.5, 2.0)
                publish(second, car, "Acceleration", "a", car.acceleration)
    events.sort(key=lambda event: (event.ts, event.type, event.id or ""))
    return Trace(width_m, height_m, tuple(events), ways)


def _drive(car: _Car) -> bool:
    """Move `car` by one second, and return whether the car has turned."""
    left = car.speed
    turned = False
    while left > 0 and car.route:
        way = math.dist(car.at, car.route[0])
        if way > left:
            share = left / way
            car.at = (
                car.at[0] + (car.route[0][0] - car.at[0]) * share,
                car.at[1] + (car.route[0][1] - car.at[1]) * share,
            )
            return turned
        left -= way
        turned = turned or way > 0
        car.at = car.route.pop(0)
    return turned


def fcd_trace(path: Path) -> Trace:
    """Read a trace from floating car data, as `scripts/sumo_trace.py` writes it.

    The columns are second, car, x, y, speed and heading (degrees). Each change of acceleration by CHANGE_MPS2 and each
    turn by TURN_DEGREES becomes an event.
    """
    try:
        with path.open(newline="") as file:
            trace = _from_rows(csv.DictReader(file))
    except OSError as error:
        raise EventError(f"cannot read the trace {path}: {error.strerror}") from None
    except (KeyError, ValueError, TypeError) as error:
        raise EventError(f"{path} is no trace with second, car, x, y, speed and heading: {error}") from None
    if not trace.ways:
        raise EventError(f"there is no car in the trace {path}")
    return trace


def _from_rows(rows: Iterable[dict[str, str]]) -> Trace:
    ways: defaultdict[str, list[tuple[int, Coordinates]]] = defaultdict(list)
    last: dict[str, tuple[float, float, float]] = {}
    events: list[Event] = []
    for row in rows:
        car, second = row["car"], int(float(row["second"]))
        x, y, speed, heading = (float(row[name]) for name in ("x", "y", "speed", "heading"))
        ways[car].append((second, (x, y)))
        before = last.get(car)
        acceleration = speed - before[0] if before else 0.0
        turn = (heading - before[1] + 180) % 360 - 180 if before else 0.0
        published = before[2] if before else 0.0
        where: dict[str, str | float] = {"car": car, "x": x, "y": y}
        # Events have different offsets in the second, so that their order does not depend on ids.
        ts = second * SECOND_US + (len(events) * 7919) % SECOND_US
        if abs(acceleration - published) >= CHANGE_MPS2:
            published = acceleration
            events.append(Event("Acceleration", ts, {**where, "a": round(acceleration, 2)}, id=f"A{car}.{second}"))
        if abs(turn) >= TURN_DEGREES:
            events.append(Event("Steering", ts, {**where, "angle": round(turn, 2)}, id=f"S{car}.{second}"))
        last[car] = (speed, heading, published)
    locations = [at for way in ways.values() for _, at in way]
    events.sort(key=lambda event: (event.ts, event.type, event.id or ""))
    width, height = (max((location[axis] for location in locations), default=1.0) + 1 for axis in (0, 1))
    return Trace(width, height, tuple(events), dict(ways))
