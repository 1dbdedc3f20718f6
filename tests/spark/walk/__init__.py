"""A walk over Spark's consumers of columnar scans: both sources beside the same rows in memory.

``directory`` writes a log directory and says which rows it has, ``consumers`` are the ways in which
Spark takes them, ``questions`` are made from a seed, ``endurance`` looks at memory over hundreds of
queries. ``python -m tests.spark.walk`` takes all of them at length.
"""
