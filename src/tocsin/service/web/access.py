"""Who is asking, and how much may they send? Tokens, roles, quotas, sizes, times."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from tocsin.service.core import Service
from tocsin.service.encoding import to_json
from tocsin.service.tokens import ANYONE, Quotas, Role, Token, Tokens
from tocsin.service.webhooks import Webhooks

BODY_BYTES = 64 << 20
BODY_S = 30.0
SMALL_BODY_BYTES = 1 << 20
STREAMS_MAX = 256


class Answer(JSONResponse):
    """JSON as the service writes it: numbers that are not finite are null."""

    def render(self, content: Any) -> bytes:
        return to_json(content)


class Refusal(HTTPException):
    """An answer that is no: its status, and after how long to try again."""

    def __init__(self, status: int, message: str, retry_s: float | None = None) -> None:
        headers = {} if retry_s is None else {"Retry-After": str(max(1, math.ceil(retry_s)))}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        super().__init__(status, message, headers)


@dataclass
class Place:
    """What all routes share."""

    service: Service
    webhooks: Webhooks
    tokens: Tokens | None
    """None: everyone may do everything."""
    hosts: frozenset[str]
    """The names that the service answers to."""
    quotas: Quotas = field(default_factory=Quotas)
    body_bytes: int = BODY_BYTES
    body_s: float = BODY_S
    streams: int = 0
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the service stops: streams end then."""
    dry_runs: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))


def place_of(request: Request) -> Place:
    """What all routes share."""
    place: Place = request.app.state.place
    return place


Here = Annotated[Place, Depends(place_of)]
_bearer = HTTPBearer(auto_error=False, description="A token that `tocsin token` has issued.")


def token_of(place: Here, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)] = None) -> Token:
    """Who is asking."""
    if place.tokens is None:
        return ANYONE
    if given is None:
        raise Refusal(401, "a token is needed: Authorization: Bearer …")
    token = place.tokens.find(given.credentials)
    if token is None:
        raise Refusal(401, "the token is not known here")
    return token


def needs(*roles: Role) -> Any:
    """Lets through whoever has one of these roles."""

    def check(token: Annotated[Token, Depends(token_of)]) -> Token:
        if token.roles.isdisjoint(roles):
            raise Refusal(403, f"this needs a token with the role {' or '.join(roles)}")
        return token

    checked: Callable[..., Token] = check
    return Depends(checked)


Publisher = Annotated[Token, needs(Role.PUBLISH)]
Subscriber = Annotated[Token, needs(Role.SUBSCRIBE)]
Deployer = Annotated[Token, needs(Role.DEPLOY)]
Onlooker = Annotated[Token, needs(Role.SUBSCRIBE, Role.DEPLOY)]
Anyone = Annotated[Token, Depends(token_of)]
