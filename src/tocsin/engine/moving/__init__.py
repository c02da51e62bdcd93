"""Run moving queries on Arrow columns.

A moving query detects rules in the events around a moving object. `MovingDetector` runs moving queries in one process,
and `spark.moving_batch` runs them on Spark.
"""
