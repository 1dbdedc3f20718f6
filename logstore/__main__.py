"""``python -m logstore``."""

from __future__ import annotations

from logstore.cli import main

main(prog_name="logstore")
