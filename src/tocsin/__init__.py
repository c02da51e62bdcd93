"""Tocsin: complex event processing.

Say in a few lines which combination of events matters; it rings once for each time that happens.
"""

from tocsin.api import DeadLetterWarning, RuleSet, rules
from tocsin.engine.detector import Detector
from tocsin.errors import EventError, RuleError, StateError, TocsinError
from tocsin.events.types import Event, EventType, Kind

__all__ = [
    "DeadLetterWarning",
    "Detector",
    "Event",
    "EventError",
    "EventType",
    "Kind",
    "RuleError",
    "RuleSet",
    "StateError",
    "TocsinError",
    "rules",
]
__version__ = "0.1.0"
