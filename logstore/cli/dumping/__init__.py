"""``logstore dump``, one module for each kind of file."""
