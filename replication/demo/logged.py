"""What the brokers log while a demo runs: warnings belong to it, errors are faults."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from checkpoints.loggers import package_loggers


class _Collector(logging.Handler):
    def __init__(self, faults: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        why = f": {record.exc_info[1]!r}" if record.exc_info else ""
        self._faults.append(f"logged by {record.name}: {record.getMessage()}{why}")


@contextmanager
def errors_as_faults(faults: list[str]) -> Iterator[None]:
    """Add every error that is logged to ``faults``; nothing of it goes to stderr."""
    collector = _Collector(faults)
    for logger in package_loggers():
        logger.addHandler(collector)
    try:
        yield
    finally:
        for logger in package_loggers():
            logger.removeHandler(collector)
