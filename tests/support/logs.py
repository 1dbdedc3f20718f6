"""What tests ask of an open log beyond what the library needs."""

from __future__ import annotations

from itertools import pairwise

from logstore.log import PartitionLog


def check_invariants(log: PartitionLog) -> None:
    """Fail if the log contradicts itself. To be called after each step."""
    state = log.state
    with state.lock:
        bases = state.segments.bases
        snapshot = log.snapshot
        end = state.log_end_offset
        rules = {
            "log start <= high watermark <= log end": (
                state.log_start_offset <= state.committed_offset <= end
            ),
            "recovery point <= log end": state.recovery_point <= end,
            "segments ascend": bases == sorted(set(bases)),
            "epochs ascend": all(
                a.epoch < b.epoch and a.start_offset < b.start_offset
                for a, b in pairwise(state.epochs.entries)
            ),
            "readers see the log as it is": log.failed
            or (
                (snapshot.log_start_offset, snapshot.log_end_offset, snapshot.high_watermark)
                == (state.log_start_offset, end, state.committed_offset)
            ),
        }
    broken = [rule for rule, holds in rules.items() if not holds]
    assert not broken, f"{log}: not {', not '.join(broken)}"


def take_producer_snapshot(log: PartitionLog) -> None:
    """Write the state of the producers at the log end, durably, as a roll or a close does."""
    with log.flusher.flush_lock, log.core.doing("write producer snapshot"):
        with log.state.lock:
            log.core.check()
            producers = log.state.producers
            producers.map_end_offset = log.state.log_end_offset
            offset = producers.take_snapshot(sync=False)
        if offset is not None:
            producers.sync_snapshot(offset)
            log.core.storage.sync_dir(log.directory)
