"""Create plots of one size and style."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot as plt


def axes(x: str, y: str) -> tuple[Any, Any]:
    """Return an empty plot."""
    figure, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.spines[["top", "right"]].set_visible(False)
    return figure, ax


def save(figure: Any, path: Path) -> str:
    """Write the plot and return a message with its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return f"plotted in {path}"
