"""JSON as the service writes it: answers, feeds, streams and webhooks.

JSON has no NaN and no infinity, and UTF-8 no lone surrogate. Numbers that are not finite are written as null, lone
surrogates as the six characters of their escapes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any


def to_json(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    r"""A value as JSON in UTF-8. `default`: what to write for a value that JSON cannot hold.

    >>> to_json({"v": [1.5, float("inf")], "t": "\ud800"})
    b'{"v":[1.5,null],"t":"\\\\ud800"}'
    """
    try:
        return _written(value, default)
    except (ValueError, RecursionError):  # which is rare: values are not looked at before
        return _written(_clean(value), default)


def utf8(text: str) -> str:
    """A text without lone surrogates: they are written as their escapes."""
    return text.encode(errors="backslashreplace").decode()


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can hold a text: it cannot hold lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _written(value: Any, default: Callable[[Any], Any] | None) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=default).encode()


DEPTH_MAX = 100


def _clean(value: Any, depth: int = 0) -> Any:
    if depth > DEPTH_MAX:
        return None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return utf8(value)
    if isinstance(value, dict):
        return {_clean(key, depth): _clean(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(one, depth + 1) for one in value]
    return value
