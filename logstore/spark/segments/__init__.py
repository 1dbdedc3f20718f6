"""Segments as the data source reads them: indexes, windows, the log's end, aborted transactions."""
