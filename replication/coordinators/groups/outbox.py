"""Collects the effects of one event of a shard, and what to call when its appends end; what clients
are answered when the log refuses a record (W-114)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from replication.common.error_codes import ErrorCode
from replication.coordinators.effects import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Append,
    CoordinatorRecord,
    Effect,
    Reply,
    StartTimer,
    StopTimer,
)

OnDone = Callable[[ErrorCode], None]

_TO_CLIENTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
_TOO_LARGE = (
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
)

COMMIT_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    **{code: code for code in ErrorCode},
    **_TO_CLIENTS,
    **dict.fromkeys(_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
}
"""By the error of the append; what is not listed here clients get as it is."""

GROUP_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    **{code: code for code in ErrorCode},
    **_TO_CLIENTS,
    **dict.fromkeys(_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
}


@dataclass(slots=True)
class GroupStats:
    """What the groups of a broker have done since its start, for metrics. Changed in the turns of
    the coordinator's actor, and read from any thread."""

    completed_rebalances: int = 0
    committed_offsets: int = 0
    expired_offsets: int = 0


class ShardOutbox:
    """Effects in the order in which they are asked for."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._appends: dict[int, tuple[OnDone, OnDone | None]] = {}
        self._number = 0

    def take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def reply(self, to: Hashable, response: object) -> None:
        self._effects.append(Reply(to, response))

    def start_timer(self, key: Hashable, delay_ms: int) -> None:
        self._effects.append(StartTimer(key, delay_ms))

    def stop_timer(self, key: Hashable) -> None:
        self._effects.append(StopTimer(key))

    def append(
        self,
        records: Iterable[CoordinatorRecord],
        on_done: OnDone,
        on_late: OnDone | None = None,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
    ) -> None:
        """Write records.

        Args:
            on_done: is called with their end.
            on_late: is called before it, with REQUEST_TIMED_OUT, if that takes long.
        """
        self._number += 1
        self._appends[self._number] = on_done, on_late
        sequence = -1 if producer_id == NO_PRODUCER_ID else 0
        self._effects.append(
            Append(tuple(records), self._number, producer_id, producer_epoch, sequence)
        )

    def append_done(self, token: Hashable, code: ErrorCode) -> None:
        assert isinstance(token, int)
        on_done, _ = self._appends.pop(token)
        on_done(code)

    def append_late(self, token: Hashable) -> None:
        assert isinstance(token, int)
        _, on_late = self._appends[token]
        if on_late is not None:
            on_late(ErrorCode.REQUEST_TIMED_OUT)
