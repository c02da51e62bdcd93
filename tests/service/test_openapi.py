"""Does anything that the OpenAPI document allows make the service fail? Schemathesis draws requests from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.budget import examples
from tests.service.serving import Running, running

pytest.importorskip("schemathesis", reason="the package schemathesis is not installed")
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import InvalidArgument, Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

EXAMPLES = 6
CHECKS = (not_a_server_error, content_type_conformance, response_schema_conformance)
ENDLESS = ("/matches/stream", "/overlay")


@schemathesis.serializer("application/x-ndjson", "application/vnd.apache.arrow.stream")
def raw(context: Any, value: Any) -> bytes:
    """Bodies that are no JSON, as they were drawn."""
    return value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("openapi")) as service:
        yield service


def operations() -> list[tuple[str, str]]:
    from tocsin.service import web_events, web_matches, web_rules, web_status, web_webhooks

    routers = [module.router for module in (web_events, web_rules, web_matches, web_webhooks, web_status)]
    found = [(method, route.path) for router in routers for route in router.routes for method in sorted(route.methods)]
    return [one for one in found if one[1] not in ENDLESS]


@pytest.mark.parametrize("mode", list(GenerationMode), ids=str)
@pytest.mark.parametrize(("method", "path"), operations())
def test_nothing_that_can_be_asked_makes_it_fail(web: Running, method: str, path: str, mode: GenerationMode) -> None:
    operation = schemathesis.openapi.from_url(f"{web.url}/openapi.json")[path][method]
    quiet = settings(
        max_examples=examples(EXAMPLES), phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None
    )

    @quiet
    @given(operation.as_strategy(generation_mode=mode))
    def check(case: Case) -> None:
        answer = case.call(headers={"Authorization": f"Bearer {web.tokens['all']}"}, timeout=60)
        case.validate_response(answer, checks=CHECKS)

    try:
        check()
    except (Unsatisfiable, InvalidArgument):
        assert mode is GenerationMode.NEGATIVE
        assert "{" not in path  # there is nothing that can be wrong with it
    assert web.service.failure is None
