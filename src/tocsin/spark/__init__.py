"""Run detection on Spark, on one machine or a cluster, over tables and streams.

    rows ─► pushdown ─► shuffle blocks ─► (shuffle) ─► slots ─► report

A *slot* is a unit of parallel work: it runs a detector for some of the rules, or for some of the keys of their events.
Catalyst filters the rows (`pushdown`), and workers next to the source pack them into shuffle blocks, one block for each
slot that needs them (`blocks`). Each slot runs its detector (`batch` for tables, `stream` for streams). Matches, dead
letters and metrics leave the slots in one table, the report. `job` describes the detection to the workers.
"""

from __future__ import annotations

from tocsin.spark.blocks import dead_letters, matches, metrics
from tocsin.spark.sessions import session

__all__ = ["dead_letters", "matches", "metrics", "session"]
