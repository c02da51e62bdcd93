"""Webhooks: where matches are sent."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Path, Query

from tocsin.service.web_access import Here, Place, Subscriber
from tocsin.service.web_models import GivenUp, GivenUpPage, WebhookAnswer, WebhookRequest
from tocsin.service.webhooks import Webhook

router = APIRouter(prefix="/webhooks", tags=["webhooks"])

Id = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]


def _answer(place: Place, webhook: Webhook, secret: str | None = None) -> WebhookAnswer:
    standing = place.webhooks.standings[webhook.id]
    return WebhookAnswer(
        id=webhook.id,
        url=webhook.url,
        rules=list(webhook.rules),
        cursor=webhook.cursor,
        delivered=standing.delivered,
        failures=standing.failures,
        last_error=standing.last_error,
        secret=secret,
    )


@router.post("", status_code=201)
async def add(wanted: WebhookRequest, place: Here, token: Subscriber) -> WebhookAnswer:
    """Send matches from now on to an address. The answer has the secret that bodies are signed with, once."""
    webhook = await place.webhooks.add(wanted.url, wanted.rules, token.name)
    return _answer(place, webhook, webhook.secret)


@router.get("")
async def webhooks(place: Here, token: Subscriber) -> list[WebhookAnswer]:
    """All webhooks, and how they are doing."""
    return [_answer(place, webhook) for webhook in place.webhooks.all.values()]


@router.get("/{id}")
async def webhook(id: Id, place: Here, token: Subscriber) -> WebhookAnswer:
    """One webhook."""
    return _answer(place, place.webhooks.get(id))


@router.delete("/{id}", status_code=204)
async def remove(id: Id, place: Here, token: Subscriber) -> None:
    """Send nothing more there."""
    await place.webhooks.remove(id)


@router.get("/{id}/dead-letters")
async def dead_letters(
    id: Id,
    place: Here,
    token: Subscriber,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> GivenUpPage:
    """Matches that were given up, with the last error."""
    lines = place.webhooks.dead_letters(id, after, limit)
    found = [GivenUp(**json.loads(line.text)) for line in lines]
    return GivenUpPage(dead_letters=found, next=lines[-1].number if lines else after, more=len(lines) == limit)
