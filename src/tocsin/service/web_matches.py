"""Define the routes that return matches: in pages, as server-sent events, and one by one with an explanation."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Path, Query
from fastapi.responses import Response

from tocsin.service import inspection
from tocsin.service.encoding import to_json
from tocsin.service.feed import Feed, Line
from tocsin.service.web_access import STREAMS_MAX, AppState, Refusal, State, Subscriber
from tocsin.service.web_models import MatchPage, Name

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

router = APIRouter(tags=["matches"])

SCANNED_MAX = 20_000
"""The maximal number of matches that are scanned for a page.

For the latest matches of a rule, only matches of this rule are scanned.
"""
CHUNK = 500
BEAT_S = 15.0
SLOW_S = 30.0
"""The time for which a subscriber may leave data unread before the stream ends."""

Id = Annotated[str, Path(pattern=r"^[0-9a-f]{1,32}$")]


def page(
    feed: Feed, after: int, limit: int, rule: str | None = None, since: str | None = None, until: str | None = None
) -> MatchPage:
    """Return the next matches in `feed` after number `after`, in order. Select them by rule and event time."""
    selected: list[dict[str, Any]] = []
    number, scanned = max(after, feed.first - 1), 0
    while len(selected) < limit and scanned < SCANNED_MAX:
        lines = feed.after(number, min(CHUNK, limit))
        if not lines:
            break
        for line in lines:
            number, scanned = line.number, scanned + 1
            match = json.loads(line.text)
            if _wanted(match, rule, since, until):
                selected.append(match)
                if len(selected) >= limit:
                    break
    return MatchPage(matches=selected, next=number, more=number < feed.last)


def newest(feed: Feed, after: int, limit: int, rule: str | None, since: str | None, until: str | None) -> MatchPage:
    """Return the last matches in `feed`, oldest first. Select them by rule and event time."""
    last = feed.last
    selected: list[dict[str, Any]] = []
    for line in islice(feed.backwards(rule), SCANNED_MAX):
        if line.number <= after or len(selected) >= limit:
            break
        match = json.loads(line.text)
        if _wanted(match, rule, since, until):
            selected.append(match)
            last = max(last, line.number)
    return MatchPage(matches=selected[::-1], next=max(last, after), more=False)


def _wanted(match: dict[str, Any], rule: str | None, since: str | None, until: str | None) -> bool:
    if rule is not None and rule not in (match.get("rule"), match.get("query")):
        return False
    ts = match.get("ts") or ""
    return (since is None or ts >= since) and (until is None or ts < until)


def _timestamp(moment: datetime | None) -> str | None:
    """Format `moment` like the times of matches, so that both can be compared as text."""
    if moment is None:
        return None
    from datetime import UTC

    try:
        utc = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (OverflowError, ValueError):
        raise Refusal(422, "the time is out of range") from None
    return f"{utc.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


@router.get("/matches")
def matches(
    state: State,
    token: Subscriber,
    rule: Annotated[Name | None, Query()] = None,
    since: Annotated[datetime | None, Query(description="From this event time on.")] = None,
    until: Annotated[datetime | None, Query(description="Before this event time.")] = None,
    after: Annotated[int, Query(ge=0, le=2**53, description="After the match with this number.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    latest: Annotated[bool, Query(description="Return the last ones, of the rule if given.")] = False,
) -> MatchPage:
    """Return matches in order of detection, in pages."""
    feed = state.service.matches
    if latest:
        return newest(feed, after, limit, rule, _timestamp(since), _timestamp(until))
    return page(feed, after, limit, rule, _timestamp(since), _timestamp(until))


@router.get(
    "/matches/stream",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def stream(
    state: State,
    token: Subscriber,
    rule: Annotated[Name | None, Query()] = None,
    after: Annotated[int | None, Query(ge=0, le=2**53, description="After this number. Default: from now on.")] = None,
    last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{1,16}$")] = None,
) -> Response:
    """Stream matches as server-sent events, as soon as they are detected.

    The id of each event is the number of its match. A subscriber that sends this number as `Last-Event-ID` resumes
    after the match.
    """
    if state.streams >= STREAMS_MAX:
        raise Refusal(503, f"the limit of {STREAMS_MAX} subscribers is reached", 5)
    start = int(last_event_id) if last_event_id is not None else after
    feed = state.service.matches
    return EventStream(state, feed.last if start is None else min(start, feed.last), rule)


@router.get("/matches/{id}")
def match(id: Id, state: State, token: Subscriber) -> dict[str, Any]:
    """Return the match with this number or id."""
    return inspection.find_match(state.service, id)


@router.get("/matches/{id}/why")
def why(id: Id, state: State, token: Subscriber) -> dict[str, Any]:
    """Explain a match: its rule, and its events with their attributes."""
    return inspection.why(state.service, id)


class EventStream(Response):
    """A response that streams the matches after `number` as server-sent events.

    The stream ends when the subscriber disconnects or stops reading, or when the service stops.
    """

    media_type = "text/event-stream"

    def __init__(self, state: AppState, number: int, rule: str | None) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._state, self._feed, self._number, self._rule = state, state.service.matches, number, rule
        self._news = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        listener = partial(_soon, loop, self._news)
        self._feed.listeners.append(listener)
        self._state.streams += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            sending = asyncio.create_task(self._send_matches(send))
            disconnect = asyncio.create_task(_disconnected(receive))
            ending = asyncio.create_task(self._state.ending.wait())
            tasks = (sending, disconnect, ending)
            _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError, TimeoutError, OSError):
                    await task
            if ending in pending:
                return
            with suppress(OSError):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._state.streams -= 1
            self._feed.listeners.remove(listener)

    async def _send_matches(self, send: Send) -> None:
        await self._send(send, b": tocsin\nretry: 1000\n\n")
        if self._number + 1 < self._feed.first:
            gap = to_json({"from": self._number + 1, "to": self._feed.first - 1})
            await self._send(send, b"event: gap\ndata: " + gap + b"\n\n")
        while True:
            self._news.clear()
            lines = self._feed.after(self._number, CHUNK)
            if lines:
                self._number = lines[-1].number
                wanted = [line for line in lines if self._rule is None or self._is_wanted(line)]
                if wanted:
                    await self._send(send, b"".join(_event(line) for line in wanted))
                continue
            try:
                async with asyncio.timeout(BEAT_S):
                    await self._news.wait()
            except TimeoutError:
                await self._send(send, b": still here\n\n")

    def _is_wanted(self, line: Line) -> bool:
        return _wanted(json.loads(line.text), self._rule, None, None)

    async def _send(self, send: Send, data: bytes) -> None:
        async with asyncio.timeout(SLOW_S):
            await send({"type": "http.response.body", "body": data, "more_body": True})


def _event(line: Line) -> bytes:
    return b"id: %d\nevent: match\ndata: %s\n\n" % line


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _soon(loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop may have ended
        loop.call_soon_threadsafe(news.set)
