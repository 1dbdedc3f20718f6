"""Collects the effects of one event of a shard, and what to call when its appends end."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

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


class ShardOutbox:
    """Effects in the order in which they are asked for."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._appends: dict[int, tuple[OnDone, OnDone | None]] = {}
        self._number = 0

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def add(self, effect: Effect) -> None:
        self._effects.append(effect)

    def reply(self, to: Hashable, response: object) -> None:
        self.add(Reply(to, response))

    def start_timer(self, key: Hashable, delay_ms: int) -> None:
        self.add(StartTimer(key, delay_ms))

    def stop_timer(self, key: Hashable) -> None:
        self.add(StopTimer(key))

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
        self.add(Append(tuple(records), self._number, producer_id, producer_epoch))

    def append_done(self, token: Hashable, code: ErrorCode) -> None:
        assert isinstance(token, int)
        on_done, _ = self._appends.pop(token)
        on_done(code)

    def append_late(self, token: Hashable) -> None:
        assert isinstance(token, int)
        _, on_late = self._appends[token]
        if on_late is not None:
            on_late(ErrorCode.REQUEST_TIMED_OUT)
