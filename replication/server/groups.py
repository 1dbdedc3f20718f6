"""The groups of a broker as its page and its metrics show them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.coordinators.effects import ClientRequest
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.protocol import messages as wire
from replication.protocol.partitions import by_partition
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
    descriptions: dict[str, wire.DescribeGroupsResponse.DescribedGroup] = {}
    offsets: dict[str, dict[TopicPartition, int]] = {}

    def take_description(group_id: str, value: Any) -> None:
        if not isinstance(value, ErrorCode) and not value.error_code:
            descriptions[group_id] = value

    def take_offsets(group_id: str, value: Any) -> None:
        if not isinstance(value, ErrorCode):
            offsets[group_id] = {
                tp: each.committed_offset
                for tp, each in by_partition(value.topics)
                if each.committed_offset >= 0 and not each.error_code
            }

    fetch = wire.OffsetFetchRequest
    for coordinator, group in listed:
        name = group.group_id
        of_group = fetch(groups=(fetch.OffsetFetchRequestGroup(name, topics=None),))
        for request, taken in (
            (wire.DescribeGroupsRequest((name,)), take_description),
            (of_group, take_offsets),
        ):
            answer = answers.expect(partial(taken, name))
            coordinator.request(name, ClientRequest(request), answer)
    answers.wait(timeout_s)
    return [
        GroupSnapshot(
            name, group.group_state, group.protocol_type, len(group.members), offsets.get(name, {})
        )
        for name, group in sorted(descriptions.copy().items())
    ]


def _list(
    coordinators: Iterable[GroupCoordinator], timeout_s: float
) -> list[tuple[GroupCoordinator, wire.ListGroupsResponse.ListedGroup]]:
    answers = _Answers()
    found: list[tuple[GroupCoordinator, wire.ListGroupsResponse.ListedGroup]] = []
    for coordinator in coordinators:
        done = answers.expect(lambda _: None)

        def take(
            code: ErrorCode,
            groups: list[wire.ListGroupsResponse.ListedGroup],
            coordinator: GroupCoordinator = coordinator,
            done: Callable[[object], None] = done,
        ) -> None:
            found.extend((coordinator, group) for group in groups)
            done(code)

        coordinator.list_groups(take)
    answers.wait(timeout_s)
    return found.copy()
