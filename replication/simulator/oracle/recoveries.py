"""Compare what a log holds after a restart with what it held before (I-13)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from checkpoints.types import TopicPartition
from replication.simulator.oracle.excuses import Excuse, Excuses
from replication.simulator.oracle.oracle_log import OracleEntry, OracleLog
from replication.simulator.world.cluster import Machine


@dataclass(slots=True)
class Remains:
    """The content of a log when its process ended."""

    entries: dict[int, OracleEntry]
    end: int
    synced: int  # the end of the log
    undone: dict[int, OracleEntry]  # truncated, with no write since
    failed: bool  # in the middle of a write, which may be kept or lost
    wipes: int  # the number of wipes of its disk


class Recoveries:
    """The logs of all brokers that are down."""

    def __init__(self, counters: Counter[str], excuses: Excuses) -> None:
        self._counters = counters
        self._excuses = excuses
        self._remains: dict[tuple[int, TopicPartition], Remains] = {}

    def ended(
        self,
        machine: Machine,
        tp: TopicPartition,
        shadow: OracleLog,
        undone: dict[int, OracleEntry],
    ) -> None:
        """Note the log of a process that is about to die."""
        key, log = (machine.broker_id, tp), shadow.log
        # In the middle of a truncation, which may be undone or not.
        if shadow.cuts != log.snapshot.version:
            undone = {**undone, **shadow.entries}
        else:
            for _ in shadow.read_new():
                pass
        # A recovery point at the log start only means that nothing below is needed.
        point = log.recovery_point
        self._remains[key] = Remains(
            shadow.entries,
            shadow.end,
            point if point > log.log_start_offset else 0,
            undone,
            log.failed or machine.disk.stopped,
            machine.disk.wipes,
        )

    def opened(
        self, machine: Machine, tp: TopicPartition, shadow: OracleLog, *, damaged: bool
    ) -> tuple[str, dict[int, OracleEntry]]:
        """Return the fault of the recovered log, if any; and truncated batches that may still
        come back.
        """
        before = self._remains.pop((machine.broker_id, tp), None)
        if before is None or before.wipes != machine.disk.wipes:
            return "", {}
        self._counters["recoveries"] += 1
        found = self._compare(machine.broker_id, shadow, before)
        if found and damaged:
            self._excuses.use(Excuse.DAMAGED)
            found = ""
        return found, before.undone

    def _compare(self, broker_id: int, shadow: OracleLog, before: Remains) -> str:
        for offset, entry in shadow.entries.items():
            if offset < shadow.start or before.entries.get(offset) == entry:
                continue
            if before.undone.get(offset) == entry:
                # Nothing was appended since, so no promise is broken: the leader has it truncated
                # again. Before an append a truncation is made durable.
                self._excuses.use(Excuse.CUT_LOST)
                continue
            if before.failed and offset >= before.end:
                self._excuses.use(Excuse.WRITE_UNDER_WAY)
                break
            return (
                f"b{broker_id} recovers {entry} at {offset}, where it had "
                f"{before.entries.get(offset) or 'nothing'}"
            )
        if shadow.end < before.synced:
            return f"b{broker_id} recovers up to {shadow.end}; it had synced up to {before.synced}"
        return ""
