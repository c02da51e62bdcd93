"""`tocsin study`: progress while it runs, then the claims."""

from __future__ import annotations

from pathlib import Path

from tocsin.cli.showing import console


def studied(
    name: str, figure: str | None, *, quick: bool, full: bool, seeds: int, out: Path, trace: Path | None = None
) -> bool:
    """Runs one study or all, and says whether every claim holds."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Table

    from tocsin.studies import NAMES, named, running
    from tocsin.studies.study import Claim, Scale

    claims: list[Claim] = []
    scale = Scale(quick, full, seeds, None if trace is None else str(trace.absolute()))
    for study in [named(one) for one in (NAMES if name == "all" else (name,))]:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        with Progress(*columns, console=console(stderr=True), transient=True) as bar:
            task = bar.add_task(study.title)

            def tell(which: str, done: int, total: int, study=study, bar=bar, task=task) -> None:  # type: ignore[no-untyped-def]
                bar.update(task, description=f"{study.name} {which}: {done} of {total} runs")

            claims += running.run(study, scale, out, tell, figure)
    screen = console()
    for claim in claims:
        screen.print(str(claim), markup=False, highlight=False, soft_wrap=True)
    if name == "all":
        table = Table("claim", "", "measured")
        for claim in claims:
            table.add_row(claim.id, "holds" if claim.holds else "fails", claim.measured)
        screen.print(table)
    console(stderr=True).print(f"figures and rows: {out}", highlight=False)
    return all(claim.holds for claim in claims)
