"""Define the routes that manage webhooks."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Path, Query

from tocsin.service.web_access import AppState, State, Subscriber
from tocsin.service.web_models import GivenUp, GivenUpPage, WebhookAnswer, WebhookRequest
from tocsin.service.webhooks import Webhook

router = APIRouter(prefix="/webhooks", tags=["webhooks"])

Id = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]


def _answer(state: AppState, webhook: Webhook, secret: str | None = None) -> WebhookAnswer:
    status = state.webhooks.statuses[webhook.id]
    return WebhookAnswer(
        id=webhook.id,
        url=webhook.url,
        rules=list(webhook.rules),
        cursor=webhook.cursor,
        delivered=status.delivered,
        failures=status.failures,
        last_error=status.last_error,
        secret=secret,
    )


@router.post("", status_code=201)
async def add(wanted: WebhookRequest, state: State, token: Subscriber) -> WebhookAnswer:
    """Create a webhook, which sends matches from now on to a URL.

    Only this response has the secret that signs the bodies.
    """
    webhook = await state.webhooks.add(wanted.url, wanted.rules, token.name)
    return _answer(state, webhook, webhook.secret)


@router.get("")
async def webhooks(state: State, token: Subscriber) -> list[WebhookAnswer]:
    """Return all webhooks with their status."""
    return [_answer(state, webhook) for webhook in state.webhooks.all.values()]


@router.get("/{id}")
async def webhook(id: Id, state: State, token: Subscriber) -> WebhookAnswer:
    """Return one webhook."""
    return _answer(state, state.webhooks.get(id))


@router.delete("/{id}", status_code=204)
async def remove(id: Id, state: State, token: Subscriber) -> None:
    """Remove a webhook."""
    await state.webhooks.remove(id)


@router.get("/{id}/dead-letters")
async def dead_letters(
    id: Id,
    state: State,
    token: Subscriber,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> GivenUpPage:
    """Return the matches that could not be delivered to the webhook, each with the last error."""
    lines = state.webhooks.dead_letters(id, after, limit)
    entries = [GivenUp(**json.loads(line.text)) for line in lines]
    return GivenUpPage(dead_letters=entries, next=lines[-1].number if lines else after, more=len(lines) == limit)
