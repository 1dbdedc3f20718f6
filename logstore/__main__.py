"""The command ``logstore``, and ``python -m logstore``.

Worker processes import this module again, so that they too find our packages first.
"""

from __future__ import annotations

from logstore.common import interrupts, siblings

siblings.prefer()


def run() -> None:
    interrupts.guard()
    try:
        from logstore.cli import main

        main(prog_name="logstore")
    except KeyboardInterrupt:  # before click, or after it
        interrupts.leave()
    except SystemExit as end:
        if end.code == interrupts.INTERRUPTED:
            interrupts.leave()
        raise


if __name__ == "__main__":
    run()
