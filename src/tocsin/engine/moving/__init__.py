"""Queries that move, over columns: `detector.MovingDetector` runs them in one process, `spark.moving` on Spark."""
