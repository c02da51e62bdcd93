"""What do commands have in common? The options that several take, and how their values are read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import run
from tocsin.errors import RuleError, nearest

if TYPE_CHECKING:
    from tocsin.ruleset import RuleSet


class Engine(StrEnum):
    """Where rules run."""

    SPARK = "spark"
    EMBEDDED = "embedded"


class Unit(StrEnum):
    """What a whole number in the time column counts."""

    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"


Rules = Annotated[Path, typer.Argument(metavar="RULES", help="A file of rules.", show_default=False)]
TypeColumn = Annotated[str, typer.Option("--type-column", help="The column with the type of each event.")]
TsColumn = Annotated[str, typer.Option("--ts-column", help="The column with its time.")]
TsUnit = Annotated[
    Unit | None,
    typer.Option("--ts-unit", help="What numbers in that column count.", show_default="microseconds"),
]
SeqColumn = Annotated[str, typer.Option("--seq-column", help="The column that orders events of one instant, if any.")]
IdColumn = Annotated[
    str | None,
    typer.Option("--id-column", help="The column with the source's own id of an event.", show_default="none"),
]


def microseconds(text: str) -> int:
    """An event time as a person writes it."""
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is no time; write 2026-07-01T12:00:00Z", param_hint="--at") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def rules_of(path: Path) -> RuleSet:
    """The rules of a file, or an error that names it."""
    import tocsin

    if not path.is_file():
        beside = [file.name for file in path.parent.iterdir() if file.is_file()] if path.parent.is_dir() else []
        raise RuleError(f"there is no file {path}", hint=nearest(path.name, beside))
    with run.named(path):
        return tocsin.rules(path)
