"""Queries that move, in columns: `detector.MovingDetector` runs them in one process, `spark.moving_batch` on Spark."""
