"""How it is going: status, health, metrics, the graph, the map, the overlay."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response

from tocsin.service import inspection, monitoring
from tocsin.service.monitoring import status as status_of
from tocsin.service.web_access import Answer, Anyone, Here, Onlooker

router = APIRouter(tags=["state"])


@router.get("/health", responses={503: {"description": "Detection has stopped."}})
async def health(place: Here) -> Answer:
    """Whether detection runs. Needs no token."""
    failed = place.service.failure is not None
    return Answer({"state": "failed" if failed else "running"}, 503 if failed else 200)


@router.get("/status")
def status(place: Here, token: Anyone) -> dict[str, Any]:
    """Counts and rates."""
    told = status_of(place.service)
    return {
        **told,
        "streams": place.streams,
        "webhooks": len(place.webhooks.all),
        "you": {"name": token.name, "roles": sorted(token.roles)},
        "events_per_s_by_type": _rounded(place.service.event_rates.per_s()),
        "matches_per_s_by_rule": _rounded(place.service.match_rates.per_s()),
    }


def _rounded(rates: dict[str, float]) -> dict[str, float]:
    return {name: round(rate, 2) for name, rate in rates.items()}


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def prometheus(place: Here, token: Anyone) -> Response:
    """The same for Prometheus."""
    text = monitoring.text(place.service, place.streams, len(place.webhooks.all))
    return Response(text, media_type=monitoring.CONTENT)


@router.get("/graph")
def graph(place: Here, token: Onlooker) -> dict[str, Any]:
    """The shared operator graph of all rules, with what flows through it in events a second."""
    return inspection.graph(place.service)


@router.get("/map")
def map(place: Here, token: Onlooker) -> dict[str, Any]:
    """Where the ranges of queries that move are, and the last events that have places."""
    return {"ranges": inspection.ranges(place.service), "places": inspection.places(place.service)}


@router.get("/overlay")
async def overlay(
    place: Here,
    token: Onlooker,
    strategy: Annotated[Literal["Centr", "ST", "MT", "STpp", "MTpp"], Query()] = "MT",
    seconds: Annotated[int, Query(ge=1, le=600)] = 120,
    seed: Annotated[int, Query(ge=0, le=2**31)] = 1,
) -> dict[str, Any]:
    """The fire rules over seven sites that are joined by slow links, simulated: the network with the traffic on it."""
    from tocsin.service.overlay import simulated

    async with place.dry_runs:
        return await asyncio.to_thread(simulated, strategy, seconds, seed)
