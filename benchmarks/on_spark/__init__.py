"""How fast is it on Spark, and against what? A module for each section of `spark_bench.py`."""
