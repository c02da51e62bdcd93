"""Where it runs: Spark, on one machine or a cluster, on tables and on streams.

    rows ─► pushdown ─► packing ─► (shuffle) ─► slots, streaming ─► reports

Rows are sorted out by Catalyst (`pushdown`), packed into parcels beside the source (`packing`), detected slot by slot
(`slots` for tables, `streaming` for streams), and come out as one report (`reports`). `jobs` is what workers are told.
"""

from __future__ import annotations

from tocsin.spark.blocks import dead_letters, matches, metrics
from tocsin.spark.sessions import session

__all__ = ["dead_letters", "matches", "metrics", "session"]
