"""How are the rules written in other engines' languages?"""

from __future__ import annotations


def written(peer: str, way: str, workload: str) -> list[str]:
    return []
