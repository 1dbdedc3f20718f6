"""Spark reads, writes and verifies log directories: see docs/spark.md."""
