"""Check that an entry point, such as `tocsin simulate`, supports all statements of a text.

There are four kinds of statements: TESLA rules, requests for notification, SiddhiQL queries, and interests (moving
queries). Some entry points support only some of these kinds. They raise an error that names the first unsupported
statement, so that no statement is ignored silently.
"""

from __future__ import annotations

from collections.abc import Iterable

from tocsin.errors import RuleError
from tocsin.language.eps.ast import Request, Statement
from tocsin.language.mcep.ast import Interest
from tocsin.language.siddhi.ast import Query
from tocsin.language.syntax.ast import Program, Rule

KINDS: dict[type, str] = {Rule: "rule", Request: "request", Query: "query", Interest: "interest"}
"""The word for each kind of statement in error messages."""


def described(statement: Statement | Interest) -> str:
    """Return the kind and the name of a statement as text.

    >>> from tocsin.language import parse
    >>> described(parse("request Both on A & B").rules[0])
    'request Both'
    """
    return f"{KINDS[type(statement)]} {statement.name}"


def check_supported(
    host: str, given: Program | Iterable[Statement | Interest], *kinds: type, remedy: str, verb: str = "run"
) -> None:
    """Raise if a statement of `given` has none of the `kinds` that an entry point supports.

    `host` is the name of the entry point. `remedy` is the end of the error message: what `host` can run, and what to
    use instead.

    >>> from tocsin.language import parse
    >>> program = parse("request Both on A & B")
    >>> check_supported("`tocsin simulate`", program, Rule, remedy="sites run rules; use `tocsin run`")
    Traceback (most recent call last):
    tocsin.errors.RuleError: `tocsin simulate` cannot run request Both: sites run rules; use `tocsin run`
    """
    # If there are interests, their rules need no check, because each interest includes the rules that it uses.
    statements = (given.interests or given.rules) if isinstance(given, Program) else given
    for statement in statements:
        if type(statement) not in KINDS:
            message = f"rules must be text, a file, or Rule objects, not {type(statement).__name__}"
            raise RuleError(message, hint="The builder's rules end with .build().")
        if not isinstance(statement, kinds):
            raise RuleError(f"{host} cannot {verb} {described(statement)}: {remedy}")


def check_used(program: Program) -> None:
    """Raise if a program has interests, but none of them uses one of its rules.

    Such a rule would deliver nothing, because matches are delivered only to interests.
    """
    used = {rule.name for interest in program.interests for rule in interest.rules}
    for rule in program.rules if program.interests else ():
        if rule.name not in used:
            raise RuleError(
                f"no interest uses {described(rule)}: with interests, a rule delivers nothing by itself",
                source=program.source,
                span=rule.span,
                hint=f"Put it into a separate text, or deliver it: 'of {rule.emits.name}'.",
            )
