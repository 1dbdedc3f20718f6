"""The groups of a broker as its page and its metrics show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from functools import partial
from itertools import chain
from typing import Any

from replication.common.error_codes import ErrorCode
from replication.coordinators.effects import ClientRequest
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.protocol import messages as wire
from replication.protocol.partitions import by_partition
from replication.server.http import GroupSnapshot

TIMEOUT_S = 2.0


def group_snapshots(
    coordinators: Iterable[GroupCoordinator], timeout_s: float = TIMEOUT_S
) -> list[GroupSnapshot]:
    """All groups of these coordinators that answer two questions within ``timeout_s`` each.

    It blocks, so a thread of the network or of a coordinator must not call it."""
    fetch = wire.OffsetFetchRequest
    lists = {_asked(partial(_list, each)): each for each in coordinators}
    asked: dict[str, list[Future[Any]]] = {}
    for listed in wait(lists, timeout_s).done:
        for group in listed.result():
            name = group.group_id
            of_group = fetch(groups=(fetch.OffsetFetchRequestGroup(name, topics=None),))
            asked[name] = [
                _asked(partial(lists[listed].request, name, ClientRequest(question)))
                for question in (wire.DescribeGroupsRequest((name,)), of_group)
            ]
    there = wait(chain.from_iterable(asked.values()), timeout_s).done
    answers = (
        [each.result() if each in there else ErrorCode.REQUEST_TIMED_OUT for each in asked[name]]
        for name in sorted(asked)
    )
    return [
        GroupSnapshot(
            group.group_id,
            group.group_state,
            group.protocol_type,
            len(group.members),
            {
                tp: each.committed_offset
                for tp, each in by_partition(
                    () if isinstance(offsets, ErrorCode) else offsets.topics
                )
                if each.committed_offset >= 0 and not each.error_code
            },
        )
        for group, offsets in answers
        if not isinstance(group, ErrorCode) and not group.error_code
    ]


def _list(coordinator: GroupCoordinator, answer: Callable[[object], None]) -> None:
    coordinator.list_groups(lambda code, groups: answer(groups))


def _asked(ask: Callable[[Callable[[object], None]], None]) -> Future[Any]:
    """The answer to a question, which comes on another thread."""
    answer: Future[Any] = Future()
    ask(answer.set_result)
    return answer
