"""What is known of event types when a rule is bound: declared, read off tables, or not yet seen.

A type is *exact* when it was declared, came as a table of its own, or is defined by a rule. All other types share the
columns of the tables with a type column that were seen. Before any data, nothing is known: rules are checked as far
as that goes, and bound again later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tocsin.errors import RuleError, Span, nearest
from tocsin.events.types import FIELDS, HEADER, EventType, Kind

READABLE = "strings, numbers, booleans or times"
"""What rules can read. Columns that hold anything else are left out on every host."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """Kinds of attributes by event type. `closed`: there are no types but the exact ones."""

    types: Mapping[str, EventType] = field(default_factory=dict)
    shared: Mapping[str, Kind] = field(default_factory=dict)
    seen: Mapping[str, Mapping[str, Kind]] = field(default_factory=dict)
    """What single events showed of their types, which may not be all."""
    empty: frozenset[str] = frozenset()
    """Columns without any value so far, so that their kinds are not known."""
    complete: bool = False
    """Whether `shared` names every column, so that another name is a mistake and not merely unseen."""
    closed: bool = False
    by_kind: bool = False
    """Whether columns of matches are called `name:kind`, so that rules may give one name different kinds."""

    expects: bool = False
    """Whether names of header fields mean attributes that events, of which none has been seen, are expected to have."""

    def check_type(self, name: str, span: Span | None) -> None:
        """Fails if there can be no events of this type."""
        if self.closed and name not in self.types:
            raise RuleError(f"there is no event type {name}", span=span, hint=nearest(name, self.types))

    def field(self, type: str, name: str, span: Span | None = None) -> tuple[str, Kind | None]:
        """What a name means of events of this type, and its kind: an attribute if they have one, else a header field,
        by its name in plans."""
        if name in HEADER and not self._has(type, name):
            if self.expects and type not in self.types:
                return name, None
            return FIELDS[name], HEADER[name]
        return name, self.kind(type, name, span)

    @property
    def blank(self) -> bool:
        """Whether no event has shown anything yet."""
        return not (self.shared or self.seen or self.empty or self.complete)

    def _has(self, type: str, attribute: str) -> bool:
        """Whether events of this type have the attribute. Types that are not exact share what their events have."""
        exact = self.types.get(type)
        if exact is not None:
            return exact.kind(attribute) is not None
        seen = any(attribute in kinds for kinds in self.seen.values())
        return seen or attribute in self.shared or attribute in self.empty

    def kind(self, type: str, attribute: str, span: Span | None = None) -> Kind | None:
        """The kind of an attribute; None if nothing is known of it yet; an error if there is none of that name."""
        exact = self.types.get(type)
        if exact is not None:
            kind = exact.kind(attribute)
            if kind is None:
                names = [name for name, _ in exact.attributes]
                if attribute in self.empty:
                    return None
                hint = nearest(attribute, names) or f"{type} has no attributes."
                raise RuleError(f"{type} has no attribute {attribute}", span=span, hint=hint)
            return kind
        kind = self.seen.get(type, {}).get(attribute) or self.shared.get(attribute)
        if kind is None and self.complete and attribute not in self.empty:
            message = f"{type} has no attribute {attribute}: the events have no such column of {READABLE}"
            raise RuleError(message, span=span, hint=nearest(attribute, self.shared))
        return kind

    def learned(
        self,
        shared: Mapping[str, Kind],
        by_type: Mapping[str, Mapping[str, Kind]],
        empty: frozenset[str],
        *,
        complete: bool,
    ) -> Catalog:
        """This catalog with what a batch showed: columns that all types share, and columns by type. The same one, if
        that is no news.

        What was known before stays: later batches are converted to it.
        """
        new_shared = {name: kind for name, kind in shared.items() if name not in self.shared}
        types, seen = dict(self.types), dict(self.seen)
        for name, kinds in by_type.items():
            if name in self.types:
                continue
            known = {**kinds, **self.seen.get(name, {})}
            if complete:
                types[name] = EventType(name, tuple(known.items()))
            elif known != self.seen.get(name):
                seen[name] = known
        whole = self.complete or (complete and not by_type)
        empty |= self.empty
        if not new_shared and (types, seen, empty, whole) == (self.types, self.seen, self.empty, self.complete):
            return self
        return replace(self, types=types, shared={**self.shared, **new_shared}, seen=seen, empty=empty, complete=whole)

    def declaring(self, types: Iterable[EventType]) -> Catalog:
        """This catalog with types of which all attributes are said now; the same one, if they are no news."""
        new = {type.name: type for type in types if self.types.get(type.name) != type}
        for name, type in new.items():
            if name in self.types:
                raise RuleError(f"{self.types[name]} is declared already, here it is {type}")
            for attribute, kind in self.seen.get(name, {}).items():
                if (said := type.kind(attribute)) not in (kind, None):
                    raise RuleError(f"{attribute} of {name} is {kind} in the events that came, here it is {said}")
        return self.with_types(new) if new else self

    def with_types(self, types: Mapping[str, EventType]) -> Catalog:
        """This catalog with more exact types."""
        return replace(self, types={**self.types, **types})

    def as_data(self) -> dict[str, Any]:
        """This catalog as plain data."""
        return {
            "exact": {name: dict(type.attributes) for name, type in self.types.items()},
            "shared": dict(self.shared),
            "seen": {name: dict(kinds) for name, kinds in self.seen.items()},
            "empty": sorted(self.empty),
            "complete": self.complete,
            "closed": self.closed,
            "by_kind": self.by_kind,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Catalog:
        """The catalog behind the data."""

        def kinds(of: Mapping[str, str]) -> dict[str, Kind]:
            return {name: Kind(kind) for name, kind in of.items()}

        return cls(
            {name: EventType(name, tuple(kinds(one).items())) for name, one in data["exact"].items()},
            kinds(data["shared"]),
            {name: kinds(one) for name, one in data["seen"].items()},
            frozenset(data["empty"]),
            data["complete"],
            data["closed"],
            data.get("by_kind", False),
        )
