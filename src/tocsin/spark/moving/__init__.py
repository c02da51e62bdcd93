"""Queries that move, on Spark: a stage by cell, a stage by query.

    rows ─► sieve (beside the source) ─► cells ─► units of each slot's queries ─► report

Over a table the ranges are known beforehand, and the first stage needs no memory (`tables`). In a stream each slot of
the first stage keeps the history of its cells and makes the pieces of the ranges itself (`streams`).
"""
