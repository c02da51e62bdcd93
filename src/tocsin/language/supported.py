"""Which kinds of statements can a host run? Each entry point that cannot run all four kinds asks here.

A text can hold TESLA rules, requests for notification, SiddhiQL queries, or interests with the rules that they use. A
host refuses a statement that it cannot run, by kind and name, so that no statement is left out without a word.
"""

from __future__ import annotations

from collections.abc import Iterable

from tocsin.errors import RuleError
from tocsin.language.eps.ast import Request, Statement
from tocsin.language.mcep.ast import Interest
from tocsin.language.siddhi.ast import Query
from tocsin.language.syntax.ast import Program, Rule

KINDS: dict[type, str] = {Rule: "rule", Request: "request", Query: "query", Interest: "interest"}
"""What each kind of statement is called."""


def described(statement: Statement | Interest) -> str:
    """The kind and the name of a statement.

    >>> from tocsin.language import parse
    >>> described(parse("request Both on A & B").rules[0])
    'request Both'
    """
    return f"{KINDS[type(statement)]} {statement.name}"


def check_supported(
    host: str, given: Program | Iterable[Statement | Interest], *kinds: type, remedy: str, verb: str = "run"
) -> None:
    """Fails unless every statement is of one of these kinds.

    `host`: the entry point, as its user calls it. `remedy`: what the host can run, and what to use instead.

    >>> from tocsin.language import parse
    >>> program = parse("request Both on A & B")
    >>> check_supported("`tocsin simulate`", program, Rule, remedy="sites run rules; use `tocsin run`")
    Traceback (most recent call last):
    tocsin.errors.RuleError: `tocsin simulate` cannot run request Both: sites run rules; use `tocsin run`
    """
    # An interest stands for the rules that it uses.
    statements = (given.interests or given.rules) if isinstance(given, Program) else given
    for statement in statements:
        if type(statement) not in KINDS:
            message = f"rules come as text, a file, or Rule objects, not as {type(statement).__name__}"
            raise RuleError(message, hint="The builder's rules end with .build().")
        if not isinstance(statement, kinds):
            raise RuleError(f"{host} cannot {verb} {described(statement)}: {remedy}")


def check_used(program: Program) -> None:
    """Fails if there is a rule that no interest uses. Beside interests a rule delivers nothing by itself."""
    used = {rule.name for interest in program.interests for rule in interest.rules}
    for rule in program.rules if program.interests else ():
        if rule.name not in used:
            raise RuleError(
                f"no interest uses {described(rule)}, and beside interests a rule delivers nothing by itself",
                source=program.source,
                span=rule.span,
                hint=f"Put it into a text of its own, or deliver it: 'of {rule.emits.name}'.",
            )
