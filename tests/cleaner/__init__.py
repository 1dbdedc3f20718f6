"""The log cleaner against a plain model, with crashes and full disks anywhere."""
