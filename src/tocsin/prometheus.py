"""How does Prometheus read a number? As text: what it is, then its value, or one for each label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def metric(name: str, kind: str, help: str, values: float | Mapping[Any, Any], label: str = "") -> Iterator[str]:
    """The lines of one metric; of a mapping, one for each key.

    >>> print(*metric("rules", "gauge", "Rules deployed.", 3), sep="", end="")
    # HELP tocsin_rules Rules deployed.
    # TYPE tocsin_rules gauge
    tocsin_rules 3
    """
    yield f"# HELP tocsin_{name} {help}\n# TYPE tocsin_{name} {kind}\n"
    if not isinstance(values, Mapping):
        yield f"tocsin_{name} {values}\n"
        return
    for key, value in sorted(values.items()):
        escaped = str(key).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        yield f'tocsin_{name}{{{label}="{escaped}"}} {value}\n'
