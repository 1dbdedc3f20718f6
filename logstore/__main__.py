"""The command ``logstore``, and ``python -m logstore``.

Worker processes import this module again, so that they too find our packages first.
"""

from __future__ import annotations

from logstore.common import interrupts, siblings

siblings.prefer()


def run(arguments: list[str] | None = None, prog_name: str = "logstore") -> None:
    interrupts.guard()
    try:
        from logstore.cli import main

        main(arguments, prog_name=prog_name)
    except KeyboardInterrupt:  # before click, or after it
        interrupts.leave()
    except SystemExit as end:
        if end.code == interrupts.INTERRUPTED:
            interrupts.leave()
        raise


if __name__ == "__main__":
    run()
