"""From paths to partitions and segments, by names and sizes alone."""
