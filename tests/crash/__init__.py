"""What a log must keep when the machine, the process or the disk fails under it."""
