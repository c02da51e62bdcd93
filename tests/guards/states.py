"""Stored states: snapshots in the middle of recorded cases, with the events that follow and their matches.

Three archives under tests/guards/states: `detectors.zip` (for each case its text and a snapshot), `slots.zip` (text and
the state of each slot of Spark's streams), `processors.zip` (sites as JSON and the state of each processor).
"""

from __future__ import annotations

import base64
import io
import json
import random
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from tests.guards.cases import LANGUAGES, STREAM, TABLE, Case, corpus, follow, lines_of, read, write
from tests.guards.internals import (
    BY_NAME,
    Event,
    Slots,
    SlotStream,
    new_network,
    notices_of,
    print_program,
    published,
    read_events,
    restored_network,
    sequences,
    sites_for,
    states_of,
    with_rules,
    write_event,
)

FOLDER = Path(__file__).parent / "states"
DETECTORS, SLOTS, PROCESSORS = (FOLDER / f"{name}.zip" for name in ("detectors", "slots", "processors"))
PER_LANGUAGE, SLOTS_PER_LANGUAGE, NETWORKS = 50, 15, 20
NOTICES_MIN = 5
END = 1000
"""A time after the events of all networks."""


# ---- detectors


def middle_of(case: Case) -> tuple[bytes, Case]:
    """Return a snapshot after half of the batches, and a case of the rest with its answer."""
    half = len(case.sizes) // 2
    detector = case.detector()
    for batch in case.batches[:half]:
        detector.push(batch)
    detector.dead_letters()
    data = detector.snapshot()
    rest = replace(case, events=case.events[sum(case.sizes[:half]) :], sizes=case.sizes[half:], way=STREAM)
    return data, replace(rest, answer=follow(rest, detector, rest.batches))


def continued(case: Case, data: bytes) -> tuple[str, ...]:
    """Return the answer of a detector restored from a snapshot."""
    return follow(case, case.ruleset().restore(data), case.batches)


def fit(language: str, number: int) -> Iterator[Case]:
    """Yield streams of the corpus with at least three lines after the middle."""
    for case in corpus(language):
        if case.way == TABLE or len(case.sizes) < 2 or len(case.answer) < 4:
            continue
        _, rest = middle_of(case)
        if len(rest.answer) >= 4:
            yield case
            number -= 1
        if not number:
            return


def detectors(language: str) -> Iterator[tuple[Case, bytes]]:
    """Yield the stored snapshots of a language, each with the rest of its case."""
    files = entries(DETECTORS)
    for name in sorted(files):
        if name.startswith(f"{language}/") and name.endswith(".txt"):
            (case,) = read(language, files[name].decode())
            yield case, files[name.replace(".txt", ".state")]


# ---- slots


def middle_of_slots(case: Case) -> tuple[bytes, tuple[str, ...], tuple[str, ...]]:
    """Return the state of the slots after half of the batches, the following lines of the same stream, and those of a
    stream restored from the bytes."""
    stream = slot_stream(case)
    half = len(case.sizes) // 2
    for batch in case.batches[:half]:
        stream.take(batch)
    data = packed(stream.stores)
    return data, rest_of_slots(case, stream), continued_slots(case, data)


def slot_stream(case: Case) -> SlotStream:
    options = {"delay_us": case.delay_us, "history_us": case.history_us or 10_000, "seed": case.number}
    return SlotStream(case.rules, case.language, read_events("\n".join(case.events)), options)


def rest_of_slots(case: Case, stream: SlotStream) -> tuple[str, ...]:
    """Return the sorted lines of the second half of the batches, as slots answer in any order."""
    rows = [row for batch in case.batches[len(case.sizes) // 2 :] for row in stream.take(batch)]
    return tuple(sorted(lines_of([*rows, *stream.finish()])))


def continued_slots(case: Case, data: bytes) -> tuple[str, ...]:
    """Return the lines of slots restored from stored state."""
    stream = slot_stream(case)
    stream.stores = unpacked(data)
    return rest_of_slots(case, stream)


def packed(stores: Mapping[int, Slots]) -> bytes:
    """Encode the values of the state stores as JSON, with bytes in base 64."""
    return json.dumps([[label, _packed(store.values)] for label, store in stores.items()]).encode()


def unpacked(data: bytes) -> dict[int, Slots]:
    return {label: Slots(_unpacked(values)) for label, values in json.loads(data)}


def _packed(value: Any) -> Any:
    match value:
        case bytes():
            return {"bytes": base64.b64encode(value).decode()}
        case tuple():
            return {"tuple": [_packed(item) for item in value]}
        case dict():
            return {"dict": [[_packed(key), _packed(item)] for key, item in value.items()]}
        case None | bool() | int() | str():
            return value
    raise TypeError(f"the state of a slot holds a {type(value).__name__}")


def _unpacked(value: Any) -> Any:
    match value:
        case {"bytes": text}:
            return base64.b64decode(text)
        case {"tuple": items}:
            return tuple(_unpacked(item) for item in items)
        case {"dict": pairs}:
            return {_unpacked(key): _unpacked(item) for key, item in pairs}
    return value


def slots(language: str) -> Iterator[tuple[Case, bytes]]:
    """Yield the stored slots of a language; the answer of a case is that after the middle."""
    files = entries(SLOTS)
    for name in sorted(files):
        if name.startswith(f"{language}/") and name.endswith(".txt"):
            (case,) = read(language, files[name].decode())
            yield case, files[name.replace(".txt", ".json")]


# ---- processors


def network_case(number: int) -> tuple[dict[str, Any], dict[str, bytes], tuple[str, ...]]:
    """Return a network as JSON, the states of its processors at half time, and all notices of an uninterrupted run."""
    rng = random.Random(f"states {number}")
    rules, events = sequences(rng)
    sites = sites_for(rng, rules)
    middle = sorted(event.ts for event in events)[len(events) // 2]
    homes: dict[str, list[str]] = {}
    for place, event in enumerate(events):
        sources = sorted(name for name, types in sites.sources.items() if event.type in types)
        homes.setdefault(rng.choice(sources), []).append(write_event(replace(event, id=f"e{place}")))
    case = {
        "strategy": [*BY_NAME][number % len(BY_NAME)],
        "rules": print_program(with_rules(rules)),
        "delays_us": [[*link, delay_us] for link, delay_us in sorted(sites.delays_us.items())],
        "events": homes,
        "middle": middle,
    }
    network = new_network(sites, case["strategy"], case["rules"])
    published(network, events_of(case, -END, middle), middle)
    states = states_of(network)
    published(network, events_of(case, middle, END), END)
    return case, states, notice_lines(network)


def events_of(case: Mapping[str, Any], since: int, until: int) -> dict[str, list[Event]]:
    """Return the events of each processor in a time range."""
    return {
        name: [event for event in read_events("\n".join(texts)) if since <= event.ts < until]
        for name, texts in case["events"].items()
    }


def continued_network(case: Mapping[str, Any], states: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return all notices of a network whose processors are restored from stored states."""
    delays_us = {(here, there): delay_us for here, there, delay_us in case["delays_us"]}
    network = restored_network(states, delays_us, case["strategy"], case["rules"])
    published(network, events_of(case, case["middle"], END), END)
    return notice_lines(network)


def notice_lines(network: Any) -> tuple[str, ...]:
    return tuple(f"{sink} {line}" for sink, rows in notices_of(network) for line in lines_of(rows))


def networks() -> Iterator[tuple[dict[str, Any], dict[str, bytes], tuple[str, ...]]]:
    """Yield the stored networks: case, states, notices."""
    files = entries(PROCESSORS)
    for name in sorted(name for name in files if name.endswith("/case.json")):
        folder = name.removesuffix("case.json")
        states = {
            path.removeprefix(folder).removesuffix(".state"): data
            for path, data in files.items()
            if path.startswith(folder) and path.endswith(".state")
        }
        yield json.loads(files[name]), states, tuple(files[f"{folder}notices.txt"].decode().split("\n")[:-1])


# ---- archives


def entries(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def store(path: Path, files: Mapping[str, bytes]) -> None:
    """Write an archive without timestamps."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(buffer.getvalue())
    print(f"{path.name}: {len(files)} entries, {len(buffer.getvalue()):,} bytes", flush=True)


def record() -> None:
    """Write all archives."""
    files: dict[str, bytes] = {}
    for language in LANGUAGES:
        for case in fit(language, PER_LANGUAGE):
            data, rest = middle_of(case)
            assert continued(rest, data) == rest.answer, case
            files[f"{language}/{case.number:04}.txt"] = write([rest]).encode()
            files[f"{language}/{case.number:04}.state"] = data
    store(DETECTORS, files)
    store(SLOTS, dict(_slot_files()))
    store(PROCESSORS, _network_files())


def _network_files() -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    stored = 0
    for number in count():
        case, states, notices = network_case(number)
        assert continued_network(case, states) == notices, case
        if len(notices) < NOTICES_MIN:
            continue
        files[f"{number:02}/case.json"] = json.dumps(case, indent=1, ensure_ascii=False).encode()
        files[f"{number:02}/notices.txt"] = ("\n".join(notices) + "\n").encode()
        files |= {f"{number:02}/{name}.state": data for name, data in states.items()}
        stored += 1
        if stored == NETWORKS:
            break
    return files


def _slot_files() -> Iterator[tuple[str, bytes]]:
    for language in LANGUAGES:
        stored = 0
        for case in fit(language, 10 * SLOTS_PER_LANGUAGE):
            if language == "mcep" and not _has_places_only(case):
                continue
            on_time = replace(case, way=STREAM, delay_us=1000)
            data, rest, again = middle_of_slots(on_time)
            assert rest == again, case
            if len(rest) < 3:
                continue
            yield f"{language}/{case.number:04}.txt", write([replace(on_time, answer=rest)]).encode()
            yield f"{language}/{case.number:04}.json", data
            stored += 1
            if stored == SLOTS_PER_LANGUAGE:
                break


def _has_places_only(case: Case) -> bool:
    """Return whether events have coordinates only, as the tables of the slots' tests require."""
    names = {name for event in read_events("\n".join(case.events)) for name in event.attributes}
    return names <= {"x", "y"} or names <= {"lon", "lat"}
