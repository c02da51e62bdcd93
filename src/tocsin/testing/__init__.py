"""Test rules in any of the languages.

`given(rules, events).expect(matches)` tests the matches of all events at once. Events and matches are written like
`Temp@10s(area="A1", value=24.5)`. `Stream` takes events step by step, with a clock that only the test moves.

`streams` generates streams of events that rules are likely to match. `verify` compares the engine with the slow
reference implementation on many generated streams. `equivalent` compares two rule sets in the same way. Both report the
shortest stream that shows a difference. These three functions need Hypothesis (the extra `testing`).
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tocsin.testing.cases import Clock, Stream, given

if TYPE_CHECKING:
    from tocsin.testing.generate import equivalent, streams, verify

__all__ = ["Clock", "Stream", "equivalent", "given", "streams", "verify"]

_LAZY = {"equivalent": "generate", "streams": "generate", "verify": "generate"}


def __getattr__(name: str) -> object:
    """Import the functions that need Hypothesis when they are first used."""
    if name not in _LAZY:
        raise AttributeError(f"module 'tocsin.testing' has no attribute '{name}'")
    try:
        return getattr(import_module(f"tocsin.testing.{_LAZY[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        message = f"tocsin.testing.{name} generates events with Hypothesis: pip install hypothesis"
        raise ImportError(message) from error
