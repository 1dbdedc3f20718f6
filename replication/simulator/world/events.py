"""Runs the events of a simulation, and checks after each whether a promise was broken."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from checkpoints.loggers import get_logger, package_loggers
from logstore.testing.faulty import SimulatedCrash
from replication.common.limited_log import LEFT_OUT
from replication.simulator.world.cluster import SimCluster
from replication.simulator.world.scheduler import US_PER_MS, Scheduler

logger = get_logger(__name__)

MAX_EVENTS = 60_000

Inspect = Callable[[int | None], None]
"""Called after an event of a broker, or of any."""


class ViolatedError(Exception):
    """A violation was found, so later events mean nothing."""


class Events:
    """Runs events.

    Args:
        look: looks for violations.
        found: the lists of these, and of errors that the code under test logged. Any of them ends
            the schedule.
    """

    def __init__(
        self, scheduler: Scheduler, cluster: SimCluster, look: Inspect, found: Sequence[list[str]]
    ) -> None:
        self._scheduler, self._cluster = scheduler, cluster
        self._look, self._found = look, found

    def wait(self, reached: Callable[[], bool], limit_ms: int, missing: Callable[[], str]) -> None:
        """
        Raises:
            ViolatedError: it is not reached in time, or a promise was broken.
        """
        deadline_us = self._scheduler.now_us + limit_ms * US_PER_MS
        while not reached():
            if self._scheduler.now_us >= deadline_us:
                raise ViolatedError(missing())
            self.until(min(deadline_us, self._scheduler.now_us + 20 * US_PER_MS))

    def until(self, until_us: int) -> None:
        """Raises as ``wait``."""
        scheduler, look, found = self._scheduler, self._look, self._found
        next_event, machines = scheduler.next_event, self._cluster.machines
        while (event := next_event(until_us)) is not None:
            process = event.process
            try:
                event.task()
            except SimulatedCrash:
                assert process is not None
                self._cluster.disk_crashed(machines[process.node])
            except Exception as error:
                logger.exception("a task failed: %s: %s", type(error).__name__, error)
            if process is None:
                look(None)
            elif (node := process.node) >= 0:
                look(node)
                machine = machines[node]
                disk = machine.disk
                if disk.busy_ms:
                    process.stall(scheduler.now_us + disk.busy_ms * US_PER_MS)
                    disk.busy_ms = 0
                if disk.stopped and machine.up:
                    self._cluster.disk_crashed(machine)
            for each in found:
                if each:
                    raise ViolatedError
            if scheduler.events > MAX_EVENTS:
                raise ViolatedError("I-24 the schedule has no end")


@contextmanager
def heard_by(handler: logging.Handler) -> Iterator[None]:
    """Send warnings and errors that the block logs to ``handler`` only."""
    loggers = package_loggers()
    before = [(each.level, each.propagate) for each in loggers]
    for each in loggers:
        each.addHandler(handler)
        each.setLevel(logging.WARNING)
        each.propagate = False
    LEFT_OUT.setLevel(logging.DEBUG)  # a line that comes again and again is counted here
    try:
        yield
    finally:
        LEFT_OUT.setLevel(logging.NOTSET)
        for each, (level, propagate) in zip(loggers, before, strict=True):
            each.removeHandler(handler)
            each.setLevel(level)
            each.propagate = propagate
