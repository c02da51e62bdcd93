"""Encode values as JSON in UTF-8, for responses, feeds, streams and webhooks.

JSON has neither NaN nor infinity, so numbers that are not finite become null. UTF-8 cannot encode lone surrogates, so
each of them becomes an escape of six characters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any


def to_json(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    r"""Encode `value` as JSON in UTF-8. `default` converts values that JSON cannot represent.

    >>> to_json({"v": [1.5, float("inf")], "t": "\ud800"})
    b'{"v":[1.5,null],"t":"\\\\ud800"}'
    """
    try:
        return _written(value, default)
    except (ValueError, RecursionError):  # rare, so values are cleaned only after a failure
        return _written(_clean(value), default)


def utf8(text: str) -> str:
    """Return `text` with each lone surrogate replaced by its escape."""
    return text.encode(errors="backslashreplace").decode()


def is_utf8(text: str) -> bool:
    """Return whether UTF-8 can encode `text`, which means that it has no lone surrogates."""
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
