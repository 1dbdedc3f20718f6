"""Log lines that a client, a peer or a node can cause as often as it likes."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Any

from checkpoints.loggers import get_logger
from logstore.common.clock import Clock, SystemClock

LEFT_OUT = get_logger("replication.left_out")
"""Lines that were left out go here, at the level DEBUG, for those who want all of them."""

COUNT = " (%d such lines were left out)"
PAUSE_NS = 60 * 1_000_000_000
MOST = 10  # things that one message is about in a pause


@dataclass(slots=True)
class _Site:
    """One message since its pause began: what it was said about, and how often it was left out."""

    begun_ns: int
    about: set[object] = field(default_factory=set)
    left_out: int = 0


class LimitedLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that says a thing at once, and then at most once a minute.

    A message about many things, such as one for each of a thousand nodes, is said about ten of them
    in that time. The next line counts those that were left out. Thread-safe.
    """

    def __init__(self, logger: logging.Logger, clock: Clock | None = None) -> None:
        super().__init__(logger)
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._sites: dict[str, _Site] = {}  # by message, of which a program has only so many

    def log(
        self, level: int, msg: object, *args: object, about: object = None, **options: Any
    ) -> None:
        """
        Args:
            msg: a constant, with a place for each of ``args``.
            about: the thing; it keeps lines of one message apart.
            options: those of ``logging``, such as ``exc_info``.
        """
        message = str(msg)
        left_out = self._left_out_before(message, about)
        if left_out is None:
            LEFT_OUT.debug(message, *args, stacklevel=2, **options)
            return
        if left_out:
            message, args = message + COUNT, (*args, left_out)
        self.logger.log(level, message, *args, stacklevel=2, **options)

    def _left_out_before(self, message: str, about: object) -> int | None:
        """Return how many lines were left out before this one; None if it is left out too."""
        now_ns = self._clock.monotonic_ns()
        with self._lock:
            site = self._sites.get(message)
            left_out = 0
            if site is None or now_ns - site.begun_ns >= PAUSE_NS:
                left_out = 0 if site is None else site.left_out
                site = self._sites[message] = _Site(now_ns)
            if about in site.about or len(site.about) == MOST:
                site.left_out += 1
                return None
            site.about.add(about)
            left_out, site.left_out = left_out + site.left_out, 0
            return left_out
