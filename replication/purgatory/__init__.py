"""Requests that wait: for an offset, for bytes, or for their deadline."""
