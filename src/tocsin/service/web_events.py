"""Events in: JSON, NDJSON or an Arrow stream; the answer comes when they are on the disk."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request

from tocsin.service import inspection
from tocsin.service.event_intake import ARROW_STREAM, FORMATS, JSON, NDJSON
from tocsin.service.records import Receipt
from tocsin.service.web_access import Here, Place, Publisher, Refusal, Subscriber
from tocsin.service.web_models import DeadLetter, DeadLetterPage, Name, ReceiptAnswer, Rejection

router = APIRouter()

_EVENT = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"type": "string", "examples": ["Temp"]},
        "ts": {"description": "ISO 8601, or microseconds since 1970; without it, now."},
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
    place: Here,
    token: Publisher,
    idempotency_key: Annotated[
        str | None, Header(max_length=200, description="The same key again gets the same answer, and counts once.")
    ] = None,
    ts_unit: Annotated[
        Literal["s", "ms", "us", "ns"] | None, Query(description="What whole numbers in `ts` count.")
    ] = None,
    id: Annotated[
        Name | None, Query(description="The attribute that holds the source's own id of an event; none, if not given.")
    ] = None,
) -> ReceiptAnswer:
    """Publish events. They are durable when the answer is there; for each that is rejected it says why."""
    format = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if format not in FORMATS:
        raise Refusal(415, f"events come as {', '.join(FORMATS)}")
    if (wait_s := place.quotas.wait_s(token)) > 0:
        raise Refusal(429, f"{token.name} publishes more than {token.events_per_s:g} events/s", wait_s)
    body = await request.body()
    key = None if idempotency_key is None else f"{token.name}:{idempotency_key}"
    receipt = await _received(place, body, format, key, ts_unit, id)
    place.quotas.use(token, receipt.accepted + receipt.rejected)
    return ReceiptAnswer(
        accepted=receipt.accepted,
        rejected=receipt.rejected,
        reasons=[Rejection(index=index, reason=reason) for index, reason in receipt.reasons],
        repeated=receipt.repeated,
    )


async def _received(
    place: Place, body: bytes, format: str, key: str | None, ts_unit: str | None, id: str | None
) -> Receipt:
    service = place.service
    if key is not None and (known := service.receipt(key)) is not None:
        return await asyncio.wrap_future(known)
    future = await asyncio.to_thread(lambda: service.accept(service.read(body, format, ts_unit, id), key))
    return await asyncio.wrap_future(future)


@router.get("/events", tags=["events"])
def latest(
    place: Here,
    token: Subscriber,
    type: Annotated[Name | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> list[dict[str, Any]]:
    """The last events, newest first."""
    return inspection.latest_events(place.service, type, limit)


@router.get("/dead-letters", tags=["events"])
def dead_letters(
    place: Here,
    token: Subscriber,
    after: Annotated[int, Query(ge=0, le=2**53, description="Behind the one of this number.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    latest: Annotated[bool, Query(description="The last ones instead.")] = False,
) -> DeadLetterPage:
    """Events that were not used, with the reason: rejected when they came, or later by the rules."""
    feed = place.service.letters
    lines = feed.after(max(after, feed.last - limit if latest else 0, feed.first - 1), limit)
    found = [DeadLetter(**json.loads(line.text)) for line in lines]
    last = found[-1].number if found else after
    return DeadLetterPage(dead_letters=found, next=last, more=last < feed.last)


@router.get("/types", tags=["events"])
def types(place: Here, token: Subscriber) -> dict[str, dict[str, str]]:
    """The types of events that came or were declared, with the kinds of their attributes."""
    return {
        type: {name: str(kind) for name, kind in named.items()} for type, named in place.service.registry.kinds.items()
    }
