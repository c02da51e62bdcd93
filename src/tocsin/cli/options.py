"""Options that several commands share, and parsers of their values."""

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
    """The engine that runs the rules: Spark, or this process."""

    SPARK = "spark"
    EMBEDDED = "embedded"


class TimeUnit(StrEnum):
    """The unit of integers in the time column."""

    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"


Rules = Annotated[Path, typer.Argument(metavar="RULES", help="The file with the rules.", show_default=False)]
TypeColumn = Annotated[str, typer.Option("--type-column", help="The column with the event type.")]
TsColumn = Annotated[str, typer.Option("--ts-column", help="The column with the event time.")]
TsUnit = Annotated[
    TimeUnit | None,
    typer.Option("--ts-unit", help="The unit of integers in the time column.", show_default="microseconds"),
]
SeqColumn = Annotated[
    str, typer.Option("--seq-column", help="The column that orders events with equal times, if there is one.")
]
IdColumn = Annotated[
    str | None,
    typer.Option("--id-column", help="The column with the source's own event id.", show_default="none"),
]


def microseconds(text: str) -> int:
    """Parse an event time, in ISO 8601 or in microseconds, to microseconds."""
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"'{text}' is not a time; write it as 2026-07-01T12:00:00Z", param_hint="--at"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def rules_of(path: Path) -> RuleSet:
    """Read the rules of the file `path`. Errors in the rules name the file."""
    import tocsin

    if not path.is_file():
        siblings = [file.name for file in path.parent.iterdir() if file.is_file()] if path.parent.is_dir() else []
        raise RuleError(f"there is no file {path}", hint=nearest(path.name, siblings))
    with run.errors_in(path):
        return tocsin.rules(path)
