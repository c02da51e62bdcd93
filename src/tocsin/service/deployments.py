"""What is deployed? Each rule, request, query or interest of a text by itself, with a text of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tocsin.errors import RuleError
from tocsin.events.types import EventType
from tocsin.language import guess, parse
from tocsin.language.eps.ast import Statement
from tocsin.language.mcep.ast import Interest
from tocsin.language.supported import check_used
from tocsin.language.syntax.ast import Program
from tocsin.language.syntax.expressions import print_program, print_rule

TEXT_CHARACTERS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Deployed:
    """One thing that detects. `text` gives it back when it is parsed, `source` is what its author wrote."""

    id: str
    language: str
    text: str
    source: str
    emits: tuple[str, ...]
    by: str = ""
    at_us: int = 0

    @property
    def moves(self) -> bool:
        return self.language == "mcep"

    def statement(self) -> Statement:
        """The rule, request or query."""
        (rule,) = parse(self.text, self.language).rules
        return rule

    def interest(self) -> tuple[Interest, tuple[EventType, ...]]:
        """The query that moves, and the types that its text declares."""
        program = parse(self.text, self.language)
        return program.interests[0], program.types


@dataclass(frozen=True, slots=True)
class Text:
    """A text that was read: its language, and what it holds."""

    source: str
    language: str
    program: Program

    @property
    def names(self) -> tuple[str, ...]:
        """The ids that it deploys."""
        some: Sequence[Statement | Interest] = self.program.interests or self.program.rules
        return tuple(one.name for one in some)

    def deployed(self, by: str = "", at_us: int = 0) -> tuple[Deployed, ...]:
        """What it deploys, one by one."""
        program, alone = self.program, len(self.names) == 1
        if program.interests:
            return tuple(
                Deployed(
                    interest.name,
                    self.language,
                    text := print_program(Program(program.types, interest.rules, (interest,))),
                    self.source if alone else text,
                    interest.delivers,
                    by,
                    at_us,
                )
                for interest in program.interests
            )
        return tuple(
            Deployed(
                rule.name,
                self.language,
                text := print_rule(rule),
                self.source if alone else text,
                (rule.emits.name,),
                by,
                at_us,
            )
            for rule in program.rules
        )


def read(source: str, language: str | None = None) -> Text:
    """A text of rules, in the named language or the one that it looks like."""
    if len(source) > TEXT_CHARACTERS_MAX:
        raise RuleError(f"a text of rules has at most {TEXT_CHARACTERS_MAX:,} characters")
    language = language or guess(source)
    program = parse(source, language)
    if not program.rules:
        raise RuleError("there is no rule here", hint="A rule starts with: define Name(…) from …")
    check_used(program)
    program = replace(program, rules=tuple(replace(rule, source=source) for rule in program.rules))
    text = Text(source, language, program)
    twice = {name for name in text.names if text.names.count(name) > 1}
    if twice:
        raise RuleError(f"two rules are called {min(twice)}", hint="Name one: rule OtherName")
    return text
