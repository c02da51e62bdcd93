"""Parse the text of rules and split it into the parts that a service deploys.

A part is a rule (TESLA), a request (EPS), a query (SiddhiQL) or an interest (MCEP), which is a query whose range moves
with an object. Each deployed part has its own text, so that it can be stored, replaced and removed alone.
"""

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
    """A deployed rule, request, query or interest.

    Parsing `text` restores the deployed part. If the author's text has no other part, `source` is the author's text;
    otherwise it equals `text`. `emits` has the types of its matches, and `by` names the token that deployed it.
    """

    id: str
    language: str
    text: str
    source: str
    emits: tuple[str, ...]
    by: str = ""
    at_us: int = 0

    @property
    def is_moving(self) -> bool:
        return self.language == "mcep"

    def statement(self) -> Statement:
        """Parse `text` and return its rule, request or query."""
        (rule,) = parse(self.text, self.language).rules
        return rule

    def interest(self) -> tuple[Interest, tuple[EventType, ...]]:
        """Parse `text` and return its interest, which is a moving query, and the types that the text declares."""
        program = parse(self.text, self.language)
        return program.interests[0], program.types


@dataclass(frozen=True, slots=True)
class ParsedText:
    """A parsed text with its language."""

    source: str
    language: str
    program: Program

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the interests in the text, or of its rules, requests and queries."""
        some: Sequence[Statement | Interest] = self.program.interests or self.program.rules
        return tuple(one.name for one in some)

    def deployed(self, by: str = "", at_us: int = 0) -> tuple[Deployed, ...]:
        """Return the parts of the text, each with its own text."""
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


def parse_rules(source: str, language: str | None = None) -> ParsedText:
    """Parse the text of rules in `language`, or guess the language if none is given."""
    if len(source) > TEXT_CHARACTERS_MAX:
        raise RuleError(f"a text of rules must have at most {TEXT_CHARACTERS_MAX:,} characters")
    language = language or guess(source)
    program = parse(source, language)
    if not program.rules:
        raise RuleError("the text contains no rule", hint="A rule starts with: define Name(…) from …")
    check_used(program)
    program = replace(program, rules=tuple(replace(rule, source=source) for rule in program.rules))
    text = ParsedText(source, language, program)
    twice = {name for name in text.names if text.names.count(name) > 1}
    if twice:
        raise RuleError(f"two rules are called {min(twice)}", hint="Name one: rule OtherName")
    return text
