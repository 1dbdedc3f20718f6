"""``logstore verify`` as one Spark job."""
