"""Scripts to copy from, and the demo: ``python -m examples.demo``."""
