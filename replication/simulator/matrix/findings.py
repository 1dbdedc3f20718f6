"""The losses of a run, and the differences of its replicas: the logs are compared with each other
and with the answers to clients.
"""

from __future__ import annotations

from dataclasses import dataclass

from replication.simulator.matrix.stage import Stage
from replication.simulator.oracle.history import WriteOutcome
from replication.simulator.oracle.validations import ReplicaContent


@dataclass(frozen=True, slots=True)
class Findings:
    """The outcome of one cell; empty fields are good.

    Attributes:
        acknowledged: how many records were acknowledged with acks=all.
        lost: the offsets of such records that the leader's log lacks at the end.
        diverged: offsets at which two replicas had different bytes below both high watermarks, or
            at the end.
        reread: offsets at which a consumer read one record and later another (I-6).
        out_of_range: how often a consumer's position did not exist.
        stuck: what did not heal, such as a replica that can no longer follow.
    """

    acknowledged: int
    lost: tuple[int, ...] = ()
    diverged: tuple[int, ...] = ()
    reread: tuple[int, ...] = ()
    out_of_range: int = 0
    stuck: str = ""

    @property
    def verdict(self) -> str:
        """``ok``, or in a few words what is wrong."""
        parts = [f"lost {len(self.lost)}"] if self.lost else []
        if self.diverged:
            parts.append(f"diverged {len(self.diverged)}")
        if self.reread:
            parts.append(f"reread {len(self.reread)}")
        if self.out_of_range:
            parts.append(f"out of range {self.out_of_range}")
        if self.stuck:
            parts.append("stuck")
        return ", ".join(parts) or "ok"

    @property
    def ok(self) -> bool:
        return self.verdict == "ok"


class Observer:
    """Compares replicas of a stage after every step, and everything at the end."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._diverged: dict[int, None] = {}
        stage.at_rest = self._compare_committed

    def _compare_committed(self) -> None:
        """Compare the leader with replicas that know where their logs diverge, not with one that
        has yet to find out.
        """
        stage = self._stage
        leader = stage.leader
        its = stage.replica(leader) if leader else None
        if its is None or not stage.leads(leader):
            return
        reference: dict[int, bytes] | None = None
        for name in stage.replicas:
            mine, known = stage.replica(name), its.progress_of(stage.ids[name])
            if mine is None or known is None or known.log_end != mine.log_end_offset:
                continue
            if reference is None:
                reference = batches_of(stage, leader)
            end = min(its.high_watermark, mine.high_watermark)
            self._note_differences(reference, batches_of(stage, name), end)

    def _note_differences(self, one: dict[int, bytes], other: dict[int, bytes], end: int) -> None:
        for offset in one.keys() & other.keys():
            if offset < end and one[offset] != other[offset]:
                self._diverged[offset] = None

    def finish(self, stuck: str) -> Findings:
        """Compare everything at the end. ``stuck`` is the result of ``Stage.heal``."""
        stage = self._stage
        leader = stage.leader
        up = [name for name in stage.replicas if stage.replica(name) is not None]
        logs = {name: batches_of(stage, name) for name in up}
        for one in logs.values():
            for other in logs.values():
                self._note_differences(one, other, 1 << 62)
        held = values_of(stage, leader) if leader in logs else {}
        acknowledged = [
            (write.offset, write.values[0])
            for write in stage.history.writes
            if write.outcome is WriteOutcome.OK and write.acks == -1
        ]
        seen = stage.history.seen.get(stage.tp, {})
        return Findings(
            acknowledged=len(acknowledged),
            lost=tuple(sorted(o for o, value in acknowledged if held.get(o) != value)),
            diverged=tuple(sorted(self._diverged)),
            reread=tuple(o for o, value in held.items() if seen.get(o, value) != value),
            out_of_range=stage.out_of_range,
            stuck=stuck,
        )


def _content(stage: Stage, name: str) -> ReplicaContent:
    return ReplicaContent(stage.machine(name), stage.tp)


def batches_of(stage: Stage, name: str) -> dict[int, bytes]:
    """Offset → the bytes of its batch, epochs included."""
    content = _content(stage, name)
    return {
        offset: content.data[batch.position : batch.position + batch.size]
        for batch in content.batches
        for offset in range(batch.base_offset, batch.last_offset + 1)
    }


def values_of(stage: Stage, name: str) -> dict[int, bytes]:
    return _content(stage, name).values
