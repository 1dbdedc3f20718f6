"""What all parts of one log share: its place, its state of health, and the snapshot that readers
see.
"""
