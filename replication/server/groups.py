"""The groups of a broker as its page and its metrics show them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial

from replication.common.error_codes import ErrorCode
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.groups.requests import (
    DescribeGroup,
    FetchOffsets,
    FetchOffsetsResult,
    GroupDescription,
    GroupListing,
)
from replication.server.http.state import GroupSnapshot

TIMEOUT_S = 2.0


class _Answers:
    """Collects answers that come on other threads; what has not come in time is left out."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._awaited = 0

    def expect(self, take: Callable[[object], None]) -> Callable[[object], None]:
        with self._changed:
            self._awaited += 1

        def answer(value: object) -> None:
            with self._changed:
                take(value)
                self._awaited -= 1
                self._changed.notify()

        return answer

    def wait(self, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._awaited, timeout_s)


def group_snapshots(
    coordinators: Iterable[GroupCoordinator], timeout_s: float = TIMEOUT_S
) -> list[GroupSnapshot]:
    """All groups of these coordinators that answer two questions within ``timeout_s`` each.

    It blocks, so a thread of the network or of a coordinator must not call it."""
    listed = _list(coordinators, timeout_s)
    answers = _Answers()
    descriptions: dict[str, GroupDescription] = {}
    offsets: dict[str, FetchOffsetsResult] = {}

    def take(group_id: str, value: object) -> None:
        if isinstance(value, GroupDescription) and value.exists:
            descriptions[group_id] = value
        elif isinstance(value, FetchOffsetsResult):
            offsets[group_id] = value

    for coordinator, group in listed:
        name = group.group_id
        for request in (DescribeGroup(name), FetchOffsets(name)):
            coordinator.request(name, request, answers.expect(partial(take, name)))
    answers.wait(timeout_s)
    return [
        GroupSnapshot(
            group.group_id,
            group.state,
            group.protocol_type,
            len(group.members),
            {
                each.tp: each.offset
                for each in offsets[name].partitions
                if each.offset >= 0 and each.error_code is ErrorCode.NONE
            }
            if name in offsets
            else {},
        )
        for name, group in sorted(descriptions.copy().items())
    ]


def _list(
    coordinators: Iterable[GroupCoordinator], timeout_s: float
) -> list[tuple[GroupCoordinator, GroupListing]]:
    answers = _Answers()
    found: list[tuple[GroupCoordinator, GroupListing]] = []
    for coordinator in coordinators:
        done = answers.expect(lambda _: None)

        def take(
            code: ErrorCode,
            groups: list[GroupListing],
            coordinator: GroupCoordinator = coordinator,
            done: Callable[[object], None] = done,
        ) -> None:
            found.extend((coordinator, group) for group in groups)
            done(code)

        coordinator.list_groups(take)
    answers.wait(timeout_s)
    return found.copy()
