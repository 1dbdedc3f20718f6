"""For each scenario the guard that it is there for, removed: those of the simulator's search
(``replication.simulator.search.mutants``), and below what that does not have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from logstore.log import ReplicaLog
from replication.broker.controller_channel import ControllerChannel
from replication.controller import partitions as decisions_module
from replication.controller.context import ControllerContext
from replication.coordination.embedded import CoordinatorStore
from replication.decisions.election import Mode
from replication.decisions.isr import IsrState
from replication.decisions.truncation import HIGH_WATERMARK_RULE, RULES, truncation_point
from replication.fetcher import fetcher_state
from replication.fetcher.fetcher_state import FetchState, FetchStates
from replication.partition import Leadership, Partition
from replication.replica_manager import replica_manager
from replication.replica_manager.delayed import DelayedProduce
from replication.replica_manager.metadata_cache import MetadataCache
from replication.simulator.search.mutants import MUTANTS, mutated


@contextmanager
def removed(guard: str) -> Iterator[None]:
    """Run the body without it."""
    if guard in MUTANTS:
        with mutated(guard):
            yield
        return
    target, name, value = _MORE[guard]
    with patch.object(target, name, value):
        yield


def _without_epoch(answer: Any, *rest: Any) -> Any:
    return truncation_point(answer._replace(epoch=-1), *rest)


_call = ControllerChannel.call


def _asks_once(self: ControllerChannel, *args: Any, **kwargs: Any) -> Any:
    return _call(self, *args, **{**kwargs, "tries": 1})


_truncate = ReplicaLog.truncate_fully_and_start_at


def _start_at_keeping_high_watermark(self: ReplicaLog, offset: int, *rest: Any) -> None:
    before, writer = self.high_watermark, self._writer
    _truncate(self, offset, *rest)
    writer.high_watermark = before
    writer.publish_locked()


def _holds_whatever_left(self: FetchStates, state: FetchState) -> bool:
    return True


def _same_leader_nothing_to_do(self: Partition, change: Any) -> bool:
    same = self.leader_id == change.registration.leader and not self.is_leader
    return _make_follower(self, change) and not same


_make_follower = Partition.make_follower
_change = decisions_module.change


def _online_only(now: Any, acceptable: Any, **rest: Any) -> Any:
    """The topic's wish for unclean elections is not heard."""
    if rest["mode"] is Mode.UNCLEAN:
        rest["mode"] = Mode.ONLINE
    return _change(now, acceptable, **rest)


def _truncation_stops_after_one_round(answer: Any, *rest: Any) -> Any:
    return truncation_point(answer, *rest)._replace(finished=True)


_cut = ReplicaLog.truncate_to


def _cut_of_nothing_keeps_epochs(self: ReplicaLog, offset: int) -> bool:
    return False if offset >= self.log_end_offset else _cut(self, offset)


def _delete_above_high_watermark(self: ReplicaLog) -> int:
    writer = self._writer
    before, writer.high_watermark = writer.high_watermark, writer.log_end_offset
    writer.publish_locked()
    try:
        return _delete_old(self)
    finally:
        writer.high_watermark = min(before, writer.log_end_offset)
        writer.publish_locked()


_delete_old = ReplicaLog.delete_old_segments
_on_result = Partition._on_result
_append_as_leader = Partition.append_as_leader


def _result_without_progress(self: Partition, *args: Any) -> None:
    with patch.object(Partition, "_try_high_watermark", lambda self, leading: False):
        _on_result(self, *args)


def _append_only_at_log_end(self: Partition, records: Any, leader_epoch: int, *rest: Any) -> Any:
    return self._append_fetched(self._following(leader_epoch), records, leader_epoch)


def _complete_at_once(self: DelayedProduce) -> bool:
    self._required.clear()
    return self.force_complete()


def _commit_alone(self: Partition, leading: Leadership) -> bool:
    log = leading.log
    return log.maybe_increment_high_watermark(log.log_end_offset) is not None


def _append_regardless(self: Partition, records: Any, acks: int, *rest: Any) -> Any:
    return _append_as_leader(self, records, 1, *rest)


_MORE: dict[str, tuple[Any, str, Any]] = {
    "truncation to the high watermark": (
        replica_manager,
        "RULES",
        {**RULES, "fetch": HIGH_WATERMARK_RULE},
    ),
    "acknowledgement after the high watermark": (
        DelayedProduce,
        "try_complete",
        _complete_at_once,
    ),
    "high watermark after the followers": (Partition, "_try_high_watermark", _commit_alone),
    "epoch in the answer": (fetcher_state, "truncation_point", _without_epoch),
    "confirmation of an ISR change": (
        IsrState,
        "maximal",
        property(lambda self: self.proposed or self.committed),
    ),
    "broker in shutdown barred by the controller": (
        ControllerContext,
        "is_eligible",
        lambda self, broker, epoch: broker in self.live,
    ),
    "broker in shutdown barred by the leader": (
        MetadataCache,
        "eligible",
        lambda self, broker, epoch: broker in self._brokers,
    ),
    "high watermark above the log start": (
        ReplicaLog,
        "truncate_fully_and_start_at",
        _start_at_keeping_high_watermark,
    ),
    "retention below the high watermark": (
        ReplicaLog,
        "delete_old_segments",
        _delete_above_high_watermark,
    ),
    "batch across the log start": (Partition, "append_as_follower", _append_only_at_log_end),
    "several rounds": (fetcher_state, "truncation_point", _truncation_stops_after_one_round),
    "cut at the log end": (ReplicaLog, "truncate_to", _cut_of_nothing_keeps_epochs),
    "answers of partitions that left": (FetchStates, "holds", _holds_whatever_left),
    "offset not available": (
        Leadership,
        "start_offset",
        property(lambda self: 0, lambda self, value: None),
    ),
    "minimum before the append": (Partition, "append_as_leader", _append_regardless),
    "unclean elections where wanted": (decisions_module, "change", _online_only),
    "high watermark after an ISR change": (Partition, "_on_result", _result_without_progress),
    "proposals are repeated": (ControllerChannel, "call", _asks_once),
    "end of silent sessions": (CoordinatorStore, "expire_sessions", lambda self, now_ms: None),
    "same leader, new epoch": (Partition, "make_follower", _same_leader_nothing_to_do),
}
