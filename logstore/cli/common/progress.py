"""The bar of a command that goes through many bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on a terminal, on stderr because stdout is for the result.

    What it gives is to be called with the bytes done with, and the bytes in all.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from logstore.terminal import tables

    with tables.progress(*tables.transferred()) as bar:
        task = bar.add_task("verify", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


__all__ = ["progress_bar"]
