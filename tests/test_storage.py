"""The log recovers after it was cut, damaged or full at any point."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin import storage as log_module
from tocsin.errors import StateError, TocsinError
from tocsin.service.feed import Feed
from tocsin.service.records import GroupCommit
from tocsin.storage import HEADER, Log

PAYLOADS = st.lists(st.binary(max_size=60), min_size=1, max_size=12)


def payloads(log: Log, position: int | None = None) -> list[bytes]:
    return [bytes(record.payload) for record in log.read(log.begin if position is None else position)]


def last_segment(folder: Path) -> Path:
    return max(folder.glob("*.log"))


def test_what_was_appended_is_read_again_from_any_record_on(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=100)
    parts = [b"a", b"", b"b" * 200, b"c"]
    ends = [end for part in parts for end in log.append([part])]
    assert payloads(log) == parts
    assert [payloads(log, end) for end in ends] == [parts[n:] for n in range(1, 5)]
    assert len(list(tmp_path.glob("*.log"))) > 1
    log.close()
    again = Log(tmp_path, segment_bytes=100)
    assert payloads(again) == parts
    assert again.append([b"d"]) == [again.end]
    assert payloads(again) == [*parts, b"d"]
    again.close()


def test_reading_stops_at_a_limit_but_gives_at_least_one(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.append([b"x" * 100] * 10)
    assert len(list(log.read(0, 1))) == 1
    assert len(list(log.read(0, 350))) == 4
    log.close()


@given(PAYLOADS, st.data())
def test_a_tail_that_is_cut_at_any_byte_leaves_the_whole_records(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = Log(folder)
    ends = log.append(parts)
    log.close()
    cut = data.draw(st.integers(0, ends[-1]))
    os.truncate(last_segment(folder), cut)
    again = Log(folder)
    whole = sum(end <= cut for end in ends)
    assert payloads(again) == parts[:whole]
    again.append([b"more"])
    again.close()
    third = Log(folder)
    assert payloads(third) == [*parts[:whole], b"more"]
    third.close()


@given(PAYLOADS, st.data())
def test_a_byte_that_changed_is_noticed_and_nothing_behind_it_is_believed(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = Log(folder)
    ends = log.append(parts)
    log.close()
    path = last_segment(folder)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    again = Log(folder)
    assert payloads(again) == parts[: sum(end <= at for end in ends)]
    torn = list(folder.glob("*.torn"))
    assert len(torn) == 1
    assert again.end + len(torn[0].read_bytes()) == ends[-1]
    again.close()


def test_a_broken_record_that_is_not_at_the_end_is_an_error(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=10)
    log.append([b"first"])
    log.append([b"second"])
    log.close()
    first = min(tmp_path.glob("*.log"))
    content = bytearray(first.read_bytes())
    content[HEADER.size] ^= 1
    first.write_bytes(content)
    again = Log(tmp_path, segment_bytes=10)
    with pytest.raises(StateError, match="broken record"):
        payloads(again)
    again.close()


def test_a_missing_segment_is_an_error(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=10)
    for part in (b"first", b"second", b"third"):
        log.append([part])
    log.close()
    sorted(tmp_path.glob("*.log"))[1].unlink()
    with pytest.raises(StateError, match="gap"):
        Log(tmp_path)


def test_delete_before_deletes_whole_segments(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=10)
    ends = [log.append([part])[0] for part in (b"first", b"second", b"third")]
    log.delete_before(ends[1] - 1)
    assert log.begin == ends[0]
    log.delete_before(log.end)
    assert log.begin == log.end
    log.append([b"fourth"])
    assert payloads(log) == [b"fourth"]
    log.close()
    again = Log(tmp_path, segment_bytes=10)
    assert payloads(again) == [b"fourth"]
    with pytest.raises(StateError, match="not in the log"):
        next(again.read(0))
    again.close()


def test_a_full_disk_takes_nothing_and_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path)
    log.append([b"before"])

    def half(file: int, pieces: list[bytes]) -> None:
        os.write(file, b"".join(pieces)[:7])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(log_module, "_write", half)
        with pytest.raises(TocsinError, match="No space left"):
            log.append([b"lost"])
    log.append([b"after"])
    assert payloads(log) == [b"before", b"after"]
    log.close()


def test_after_a_failed_fsync_nothing_is_accepted_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path)

    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        with pytest.raises(StateError):
            log.append([b"x"])
    with pytest.raises(StateError):
        log.append([b"y"])
    log.close()


def test_a_log_has_one_owner(tmp_path: Path) -> None:
    log = Log(tmp_path)
    with pytest.raises(StateError, match="in use"):
        Log(tmp_path)
    log.close()


def test_many_writers_share_a_few_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path)
    gate = threading.Event()
    sync = os.fdatasync

    def slow(file: int) -> None:
        gate.wait(10)
        sync(file)

    monkeypatch.setattr(os, "fdatasync", slow)
    committer = GroupCommit(log, lambda: None)
    futures = [committer.submit(b"first")]
    while committer._waiting:
        pass
    futures += [committer.submit(f"{number}".encode()) for number in range(100)]
    assert not any(future.done() for future in futures)
    gate.set()
    assert sorted(future.result(10) for future in futures)[-1] == log.end
    assert committer.groups == 2
    assert len(payloads(log)) == 101
    committer.close()
    log.close()


def test_a_feed_is_read_backwards_by_rule(tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed", keep_bytes=1 << 18, cached=3)
    for number in range(40):
        rare = [{"rule": "Rare"}] if number % 20 == 19 else []
        feed.write([{"rule": "Often"}, *rare, {"rule": "Hot", "query": "Near"}])
    numbers = {
        rule: [one.number for one in feed.after(0, 1_000) if f'"{rule}"'.encode() in one.text][::-1]
        for rule in ("Often", "Rare", "Near")
    }
    assert len(numbers["Rare"]) == 2

    def check(feed: Feed) -> None:
        for rule, expected in numbers.items():
            assert [one.number for one in feed.backwards(rule)] == expected
        assert [one.number for one in feed.backwards()] == list(range(82, 0, -1))
        assert list(feed.backwards("None")) == []

    check(feed)
    feed.close()
    feed = Feed(tmp_path / "feed", keep_bytes=1 << 18, cached=3)
    check(feed)
    for _ in range(10):
        feed.write([{"rule": "Often", "text": "x" * 1_000}] * 100)
    assert list(feed.backwards("Rare")) == []  # deleted
    feed.close()
