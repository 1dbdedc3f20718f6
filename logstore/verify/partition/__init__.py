"""One partition directory: its segments together, its snapshots, checkpoints and other small
files.
"""
