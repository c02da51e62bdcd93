"""Publish generated sensor readings to a service, and deploy rules that find fires in the readings.

The readings resemble those of `tocsin.datasets`, with current timestamps. Fires are frequent, so that the first match
appears within seconds. A car drives around a block, and a moving query reports heat within 150 m of the car.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import suppress

import numpy as np
import pyarrow as pa

from tocsin.datasets import TYPES
from tocsin.errors import TocsinError
from tocsin.service.event_intake import ParsedEvents
from tocsin.service.service import Service

logger = logging.getLogger("tocsin.service")

RULES = """
# Smoke, and hot air in the same area at most five minutes before: one fire for each smoke.
rule    Fire
define  Fire(area: string, temp: double)
from    Smoke(area=$a) and last Temp(area=$a and value>45) within 5 min from Smoke
where   area = Smoke.area and temp = Temp.value

# Hot air, and no rain in the same area in the minute before.
rule    DryHeat
define  DryHeat(area: string, temp: double)
from    Temp(area=$a and value>55) and not Rain(area=$a) within 1 min from Temp
where   area = Temp.area and temp = Temp.value

# Two fires of one area within two minutes.
rule    Spreading
define  Spreading(area: string)
from    Fire(area=$a) and last Fire(area=$a) as before within 2 min from Fire
where   area = Fire.area
"""
MOVING = """
define    Hot(area: string, temp: double)
from      Temp(value>75)
where     area = Temp.area, temp = Temp.value

interest  NearTheCar
of        Hot
around    Car(name="c1")
range     circle 150 m
lifetime  10 s
update    every 2 s
"""
AREAS = 25
SIDE_M = 100.0
RATE = 60
"""The number of sensor readings per second."""
STEP_S = 0.25
BURNING_S = 25.0


class Demo:
    """Publish the demo's events from a separate thread until `stop` is called."""

    def __init__(self, service: Service, seed: int = 1) -> None:
        self._service = service
        self._random = np.random.default_rng(seed)
        self._burning: dict[int, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tocsin-demo", daemon=True)

    def start(self) -> None:
        """Deploy the rules and start to publish."""
        for text in (RULES, MOVING):
            self._service.deploy(text, replace=True, by="demo").result(300)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        begun_s = time.time()
        while not self._stopping.wait(STEP_S):
            now_s = time.time()
            with suppress(TocsinError):
                self._service.accept(self._step(now_s, now_s - begun_s)).result(60)

    def _step(self, now_s: float, age_s: float) -> ParsedEvents:
        """Return the sensor readings of one step of `STEP_S`, and the position of the car."""
        random, count = self._random, round(RATE * STEP_S)
        if age_s > 2 and len(self._burning) < 2 and random.random() < 0.1:
            self._burning[int(random.integers(AREAS))] = now_s
        self._burning = {area: since for area, since in self._burning.items() if now_s - since < BURNING_S}
        area = random.integers(0, AREAS, count)
        hot = random.random(count) < 0.3
        if self._burning:
            area[hot] = random.choice(list(self._burning), int(hot.sum()))
        burning = np.array([now_s - self._burning[one] if one in self._burning else 0.0 for one in area.tolist()])
        heat = 60 * (1 - np.exp(-burning / 6))
        value = np.round(22 + 3 * random.standard_normal(count) + heat, 1)
        luck = random.random(count)
        kind = np.zeros(count, np.int32)
        kind[(heat > 20) & (luck < 0.12)] = 1
        kind[(heat == 0) & (luck < 0.02)] = 2
        kind[(heat == 0) & (luck > 0.995)] = 1
        ts = np.sort((now_s - random.random(count) * STEP_S) * 1e6).astype(np.int64)
        across = area % 5 * SIDE_M + random.uniform(0, SIDE_M, count)
        along = area // 5 * SIDE_M + random.uniform(0, SIDE_M, count)
        turn = age_s / 40 * 2 * math.pi
        table = pa.table(
            {
                "type": pa.array([*TYPES, "Car"]).take(pa.array(np.append(kind, 3))),
                "ts": pa.array(np.append(ts, ts[-1] + 1)).cast(pa.timestamp("us", "UTC")),
                "area": pa.array([*(f"A{one + 1}" for one in area.tolist()), None]),
                "value": pa.array(np.append(value, 0), mask=np.append(kind != 0, True)),
                "x": np.append(across, 250 + 180 * math.cos(turn)).round(1),
                "y": np.append(along, 250 + 180 * math.sin(turn)).round(1),
                "name": pa.array([*[None] * count, "c1"], pa.string()),
            }
        )
        return self._service.take(table)
