"""Define the routes that publish and list events, and list dead letters and types.

Published events are on disk before the response is sent.
"""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request

from tocsin.service import inspection
from tocsin.service.event_intake import ARROW_STREAM, FORMATS, JSON, NDJSON
from tocsin.service.records import EventsAck
from tocsin.service.web_access import AppState, Publisher, Refusal, State, Subscriber
from tocsin.service.web_models import DeadLetter, DeadLetterPage, Name, ReceiptAnswer, Rejection

router = APIRouter()

_EVENT = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"type": "string", "examples": ["Temp"]},
        "ts": {"description": "ISO 8601, or microseconds since 1970. Default: now."},
        "seq": {"type": "integer"},
    },
    "additionalProperties": True,
}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {"schema": {"anyOf": [_EVENT, {"type": "array", "items": _EVENT}]}},
            NDJSON: {"schema": {"type": "string", "examples": ['{"type": "Temp", "area": "A1", "value": 46.5}']}},
            ARROW_STREAM: {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


@router.post("/events", openapi_extra=_BODY, tags=["events"])
async def publish(
    request: Request,
    state: State,
    token: Publisher,
    idempotency_key: Annotated[
        str | None,
        Header(
            max_length=200, description="A repeated request with the same key counts once and gets the same answer."
        ),
    ] = None,
    ts_unit: Annotated[
        Literal["s", "ms", "us", "ns"] | None, Query(description="The unit of integers in `ts`.")
    ] = None,
    id: Annotated[
        Name | None, Query(description="The attribute with the source's own id of an event. Default: none.")
    ] = None,
) -> ReceiptAnswer:
    """Publish events. Accepted events are durable before the response is sent.

    The response has the reasons for rejected events.
    """
    format = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if format not in FORMATS:
        raise Refusal(415, f"the content type must be one of {', '.join(FORMATS)}")
    if (wait_s := state.quotas.wait_s(token)) > 0:
        raise Refusal(429, f"the token {token.name} may publish {token.events_per_s:g} events/s", wait_s)
    body = await request.body()
    key = None if idempotency_key is None else f"{token.name}:{idempotency_key}"
    ack = await _accept(state, body, format, key, ts_unit, id)
    state.quotas.use(token, ack.accepted + ack.rejected)
    return ReceiptAnswer(
        accepted=ack.accepted,
        rejected=ack.rejected,
        reasons=[Rejection(index=index, reason=reason) for index, reason in ack.reasons],
        repeated=ack.repeated,
    )


async def _accept(
    state: AppState, body: bytes, format: str, key: str | None, ts_unit: str | None, id: str | None
) -> EventsAck:
    service = state.service
    if key is not None and (first := service.ack(key)) is not None:
        return await asyncio.wrap_future(first)
    future = await asyncio.to_thread(lambda: service.accept(service.read(body, format, ts_unit, id), key))
    return await asyncio.wrap_future(future)


@router.get("/events", tags=["events"])
def latest(
    state: State,
    token: Subscriber,
    type: Annotated[Name | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> list[dict[str, Any]]:
    """Return the last events, newest first."""
    return inspection.latest_events(state.service, type, limit)


@router.get("/dead-letters", tags=["events"])
def dead_letters(
    state: State,
    token: Subscriber,
    after: Annotated[int, Query(ge=0, le=2**53, description="After the one with this number.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    latest: Annotated[bool, Query(description="Return the last ones instead.")] = False,
) -> DeadLetterPage:
    """Return the events that were rejected on arrival or by a rule, each with the reason."""
    feed = state.service.dead_letters
    lines = feed.after(max(after, feed.last - limit if latest else 0, feed.first - 1), limit)
    entries = [DeadLetter(**json.loads(line.text)) for line in lines]
    last = entries[-1].number if entries else after
    return DeadLetterPage(dead_letters=entries, next=last, more=last < feed.last)


@router.get("/types", tags=["events"])
def types(state: State, token: Subscriber) -> dict[str, dict[str, str]]:
    """Return the event types that were seen or declared, with the kinds of their attributes."""
    return {
        type: {name: str(kind) for name, kind in named.items()} for type, named in state.service.registry.kinds.items()
    }
