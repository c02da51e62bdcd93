"""Tocsin: complex event processing. Say in a few lines which combination of events matters; it rings once for each time
that happens.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tocsin.engine.detector import Detector
    from tocsin.errors import EventError, RuleError, StateError, TocsinError
    from tocsin.events.types import Event, EventType, Kind
    from tocsin.live import Live, Notification
    from tocsin.ruleset import DeadLetterWarning, RuleSet, rules

__version__ = "0.1.0"
__all__ = [
    "DeadLetterWarning",
    "Detector",
    "Event",
    "EventError",
    "EventType",
    "Kind",
    "Live",
    "Notification",
    "RuleError",
    "RuleSet",
    "StateError",
    "TocsinError",
    "rules",
]

_HOMES = {
    "tocsin.ruleset": ("DeadLetterWarning", "RuleSet", "rules"),
    "tocsin.engine.detector": ("Detector",),
    "tocsin.errors": ("EventError", "RuleError", "StateError", "TocsinError"),
    "tocsin.live": ("Live", "Notification"),
    "tocsin.events.types": ("Event", "EventType", "Kind"),
}


def __getattr__(name: str) -> object:
    """Imports what is asked for when it is asked for: the engine brings a compiler, `tocsin --help` needs none."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'tocsin' has no attribute '{name}'")
