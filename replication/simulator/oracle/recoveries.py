"""What a log holds after its process ended, against what it held before (I-13)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from checkpoints.types import TopicPartition
from replication.simulator.oracle.excuses import Excuse, Excuses
from replication.simulator.oracle.oracle_log import Entry, Shadow
from replication.simulator.world.cluster import Machine


@dataclass(slots=True)
class Remains:
    """What was in a log when its process ended."""

    entries: dict[int, Entry]
    end: int
    synced: int  # up to here
    undone: dict[int, Entry]  # cut off, and nothing was written since
    failed: bool  # in the middle of a write, which may be there or not
    wipes: int  # of its disk


class Recoveries:
    """The logs of all brokers that are down."""

    def __init__(self, counters: Counter[str], excuses: Excuses) -> None:
        self._counters = counters
        self._excuses = excuses
        self._remains: dict[tuple[int, TopicPartition], Remains] = {}

    def ended(
        self, machine: Machine, tp: TopicPartition, shadow: Shadow, undone: dict[int, Entry]
    ) -> None:
        """The process is about to die."""
        key, log = (machine.broker_id, tp), shadow.log
        if shadow.cuts != log.version:  # in the middle of a cut: all of it may be undone, or not
            undone = {**undone, **shadow.entries}
        else:
            for _ in shadow.read_new():
                pass
        # A recovery point at the log start only says that nothing below is needed.
        point = log.recovery_point
        self._remains[key] = Remains(
            shadow.entries, shadow.end, point if point > log.log_start_offset else 0, undone,
            log.failed or machine.disk.stopped, machine.disk.wipes,
        )  # fmt: skip

    def opened(
        self, machine: Machine, tp: TopicPartition, shadow: Shadow, *, damaged: bool
    ) -> tuple[str, dict[int, Entry]]:
        """What is wrong with what was recovered, if anything is; and what a cut took out that is
        still not sure to be gone."""
        before = self._remains.pop((machine.broker_id, tp), None)
        if before is None or before.wipes != machine.disk.wipes:
            return "", {}
        self._counters["recoveries"] += 1
        found = self._compare(machine.broker_id, shadow, before)
        if found and damaged:
            self._excuses.use(Excuse.DAMAGED)
            found = ""
        return found, before.undone

    def _compare(self, broker_id: int, shadow: Shadow, before: Remains) -> str:
        for offset, entry in shadow.entries.items():
            if offset < shadow.start or before.entries.get(offset) == entry:
                continue
            if before.undone.get(offset) == entry:
                # Nothing was appended since, so nothing was promised that this breaks: the leader
                # has it cut again. Before an append the cut is made durable.
                self._excuses.use(Excuse.CUT_LOST)
                continue
            if before.failed and offset >= before.end:
                self._excuses.use(Excuse.WRITE_UNDER_WAY)
                break
            return (
                f"b{broker_id} recovers {entry} at {offset}, where it had "
                f"{before.entries.get(offset)}"
            )
        if shadow.end < before.synced:
            return f"b{broker_id} recovers up to {shadow.end}; it had synced up to {before.synced}"
        return ""
