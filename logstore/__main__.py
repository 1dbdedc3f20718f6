"""The command ``logstore``, and ``python -m logstore``.

Worker processes import this module again, so that they too find our packages first.
"""

from __future__ import annotations

from logstore import siblings

siblings.prefer()


def run() -> None:
    from logstore.cli import main

    main(prog_name="logstore")


if __name__ == "__main__":
    run()
