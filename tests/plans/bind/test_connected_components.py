"""Roles without relations are in separate connected components."""

from __future__ import annotations

import pytest

from tocsin.language import parse
from tocsin.plans.bind.requests import bind_request
from tocsin.plans.typing import Catalog


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A as a & B as b & C as c & D as d if a.x = b.x and b.x = c.x and c.x = d.x", ["b", "c", "d"]),
        ("A as a & B as b & C as c & D as d if a.x = b.x and c.x = d.x", ["b", "cd"]),
        ("A as a & B as b & C as c & D as d if a.x = b.x and b.y = c.y and c.x = d.x", ["bcd"]),
        ("A as a & B as b & C as c & D as d if b.x < c.x", ["bc", "d"]),
        ("A as a & (B as b ; C as c) & D as d", ["bc", "d"]),
        ("A as a & B as b & B as c & D as d", ["bc", "d"]),
        ("A as a & B(k = 1) as b & B(k = 2) as c & D as d", ["b", "c", "d"]),
        ("A as a & B(k = 1) as b & B(i = 2) as c & D as d", ["bc", "d"]),
    ],
)
def test_components_when_the_first_event_arrives_last(text: str, expected: list[str]) -> None:
    (request,) = parse(f"request R on {text}").rules
    plan = bind_request(request, Catalog())[0]
    assert plan.request_join is not None
    assert plan.names[plan.request_join.anchor] == "a"
    found = [
        "".join(sorted(plan.names[one.role_index] for one in part.lookups)) for part in plan.request_join.components
    ]
    assert sorted(found) == expected
