"""Benchmarks on Spark: one module for each section of `spark_bench.py`."""
