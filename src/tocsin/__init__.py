"""Tocsin: complex event processing for PySpark.

A rule of a few lines defines which combination of events matters, and Tocsin reports each occurrence.
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

_MODULES = {
    "tocsin.ruleset": ("DeadLetterWarning", "RuleSet", "rules"),
    "tocsin.engine.detector": ("Detector",),
    "tocsin.errors": ("EventError", "RuleError", "StateError", "TocsinError"),
    "tocsin.live": ("Live", "Notification"),
    "tocsin.events.types": ("Event", "EventType", "Kind"),
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, because the engine loads a compiler that few commands need."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'tocsin' has no attribute '{name}'")
