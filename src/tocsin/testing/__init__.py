"""Does my rule do what I mean? For a user's own tests, of rules in any of the languages.

`given(rules, events).expect(matches)` is a case, written as events are (`Temp@10s(area="A1", value=24.5)`). `Stream`
takes events piece by piece under a clock that only the test moves. `streams` draws events that a set of rules is
likely to care about; `verify` compares the engine with the slow reference on many of them, and `equivalent` two sets
of rules with each other, and both tell the shortest stream that shows a difference.

The last three need Hypothesis (the extra `testing`).
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tocsin.testing.cases import Clock, Stream, given

if TYPE_CHECKING:
    from tocsin.testing.generate import equivalent, streams, verify

__all__ = ["Clock", "Stream", "equivalent", "given", "streams", "verify"]

_DRAWN = {"equivalent": "generate", "streams": "generate", "verify": "generate"}


def __getattr__(name: str) -> object:
    """Imports what needs Hypothesis when it is asked for."""
    if name not in _DRAWN:
        raise AttributeError(f"module 'tocsin.testing' has no attribute '{name}'")
    try:
        return getattr(import_module(f"tocsin.testing.{_DRAWN[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        message = f"tocsin.testing.{name} draws its events with Hypothesis: pip install hypothesis"
        raise ImportError(message) from error
