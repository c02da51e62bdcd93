"""Define the routes for status, health, metrics, the operator graph and the map."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from tocsin.service import inspection, monitoring
from tocsin.service.monitoring import status as status_of
from tocsin.service.web_access import Anyone, FiniteJsonResponse, Observer, State

router = APIRouter(tags=["state"])


@router.get("/health", responses={503: {"description": "Detection has stopped."}})
async def health(state: State) -> FiniteJsonResponse:
    """Return whether detection runs. The request needs no token."""
    failed = state.service.failure is not None
    return FiniteJsonResponse({"state": "failed" if failed else "running"}, 503 if failed else 200)


@router.get("/status")
def status(state: State, token: Anyone) -> dict[str, Any]:
    """Return the state, the counts and the rates of the service."""
    status = status_of(state.service)
    return {
        **status,
        "streams": state.streams,
        "webhooks": len(state.webhooks.all),
        "you": {"name": token.name, "roles": sorted(token.roles)},
        "events_per_s_by_type": _rounded(state.service.event_rates.per_s()),
        "matches_per_s_by_rule": _rounded(state.service.match_rates.per_s()),
    }


def _rounded(rates: dict[str, float]) -> dict[str, float]:
    return {name: round(rate, 2) for name, rate in rates.items()}


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def prometheus(state: State, token: Anyone) -> Response:
    """Return the metrics in the text format of Prometheus."""
    text = monitoring.text(state.service, state.streams, len(state.webhooks.all))
    return Response(text, media_type=monitoring.CONTENT)


@router.get("/graph")
def graph(state: State, token: Observer) -> dict[str, Any]:
    """Return the operator graph that all rules share, with rates in events per second."""
    return inspection.graph(state.service)


@router.get("/map")
def map(state: State, token: Observer) -> dict[str, Any]:
    """Return the ranges of moving queries and the last events with coordinates."""
    return {"ranges": inspection.ranges(state.service), "places": inspection.located_events(state.service)}
