"""Whether a broker may be restarted (X-152, X-153), and what brokers say, put together."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication.supervisor.cluster_file import BrokerEntry, ClusterFile, EngineEntry
from replication.supervisor.cluster_state import (
    BrokerView,
    ClusterHealth,
    PartitionView,
    ask_cluster,
    ask_engine,
    find_controller,
    merged_partitions,
    next_restart,
    why_not_restart,
)


def brokers(
    count: int = 3,
    controller: int = 2,
    down: tuple[int, ...] = (),
    behind: tuple[int, ...] = (),
) -> tuple[BrokerView, ...]:
    return tuple(
        BrokerView(
            n,
            "no answer" if n in down else "",
            ("orders-0 catches up",) if n in behind else (),
            n == controller and n not in down,
        )
        for n in range(count)
    )


def partition(
    number: int = 0,
    *,
    replicas: tuple[int, ...] = (0, 1, 2),
    isr: tuple[int, ...] | None = None,
    min_isr: int = 2,
) -> PartitionView:
    isr = replicas if isr is None else isr
    leader = isr[0] if isr else -1
    return PartitionView(TopicPartition("orders", number), leader, replicas, isr, min_isr)


WELL = partition()

# brokers, partitions, then for each broker whether it may be restarted
TABLE: list[tuple[str, tuple[BrokerView, ...], list[PartitionView], list[bool]]] = [
    ("all is well", brokers(), [WELL, partition(1)], [True, True, True]),
    ("no partitions", brokers(), [], [True, True, True]),
    ("one does not answer", brokers(down=(1,)), [WELL], [False, True, False]),
    ("one does not answer and is out of the ISR", brokers(down=(1,)), [partition(isr=(0, 2))],
     [False, True, False]),
    ("one recovers", brokers(behind=(1,)), [partition(isr=(0, 2))], [False, False, False]),
    ("one recovers, of another partition", brokers(behind=(1,)),
     [partition(replicas=(0, 2), min_isr=1), partition(1, replicas=(1, 2), isr=(2,), min_isr=1)],
     [False, False, False]),
    ("all ready, a replica is out of the ISR", brokers(), [partition(isr=(0, 2), min_isr=1)],
     [True, False, True]),
    ("the minimum is reached", brokers(), [partition(isr=(0, 1))], [False, False, False]),
    ("a minimum of one", brokers(), [partition(min_isr=1)], [True, True, True]),
    ("all replicas are needed", brokers(), [partition(min_isr=3)], [False, False, False]),
    ("one replica", brokers(), [partition(replicas=(1,), min_isr=1)], [True, False, True]),
    ("no leader", brokers(down=(1,)), [partition(replicas=(1,), isr=(), min_isr=0)],
     [False, True, False]),
    ("the leader does not say", brokers(), [partition(min_isr=0)], [False, False, False]),
    ("below the minimum, elsewhere", brokers(4), [partition(isr=(0, 1)), partition(1)],
     [False, False, False, True]),
    ("all are away", brokers(down=(0, 1, 2)), [], [True, True, True]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("views", "partitions", "may"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_whether_a_broker_may_be_restarted(
    views: tuple[BrokerView, ...], partitions: list[PartitionView], may: list[bool]
) -> None:
    view = ClusterHealth(views, tuple(partitions))
    assert [not why_not_restart(n, view) for n in range(len(views))] == may


def test_a_thousand_reasons_are_some_words() -> None:
    names = tuple(f"t-{number} is not in sync" for number in range(1000))
    some = ", ".join(names[:5])
    assert BrokerView(1, reasons=names).why == f"{some} and more"
    assert BrokerView(1, reasons=names[:5]).why == some
    assert BrokerView(1, "no answer").why == "no answer"
    assert not BrokerView(1).why


def test_the_reasons_are_said() -> None:
    view = ClusterHealth(brokers(), (partition(isr=(0, 1)), partition(1, min_isr=3)))
    assert why_not_restart(0, view) == [
        "orders-0: 1 in sync would be left, and min.insync.replicas is 2",
        "orders-1: 2 in sync would be left, and min.insync.replicas is 3 with 3 replicas",
    ]
    assert why_not_restart(2, view)[0] == "orders-0: broker 2 catches up"
    assert why_not_restart(7, view) == ["there is no broker 7"]
    assert why_not_restart(0, ClusterHealth(brokers(down=(1,)), ())) == [
        "broker 1 is not ready: no answer"
    ]


def test_partitions_that_cannot_be_kept_up_may_be_let_down() -> None:
    """Those that may be away are those that need each of their replicas, and no others."""
    view = ClusterHealth(brokers(), (partition(replicas=(1,), min_isr=1), partition(1, min_isr=3)))
    assert why_not_restart(1, view, allow_unavailable=True) == []
    view = ClusterHealth(brokers(), (partition(isr=(0, 1)),))
    assert why_not_restart(1, view, allow_unavailable=True)


def test_one_after_the_other_and_the_controller_last() -> None:
    pending, order = [0, 1, 2], []
    while pending:
        choice, reasons = next_restart(pending, ClusterHealth(brokers(controller=0), (WELL,)))
        assert choice is not None
        assert reasons == []
        pending.remove(choice)
        order.append(choice)
    assert order == [1, 2, 0]


def test_one_that_may_comes_before_one_that_may_not() -> None:
    view = ClusterHealth(brokers(), (partition(replicas=(0,), min_isr=1),))
    assert next_restart([0, 1, 2], view) == (1, [])
    choice, reasons = next_restart([0, 2], view)
    assert choice is None  # the controller waits until 0 was restarted
    assert len(reasons) == 1
    assert next_restart([2], view) == (2, [])


# -- what brokers say ------------------------------------------------------------------------------


def row(leader: int, epoch: int, min_isr: int, isr: tuple[int, ...]) -> dict[str, Any]:
    return {
        "topic": "orders",
        "partition": 0,
        "leader": leader,
        "leader_epoch": epoch,
        "min_isr": min_isr,
        "isr": list(isr),
        "replicas": [{"broker": n} for n in range(3)],
    }


def test_a_partition_is_as_the_leader_of_its_latest_epoch_shows_it() -> None:
    told = {"partitions": [row(1, 6, 0, (0, 1, 2))]}
    leads = {"partitions": [row(1, 6, 2, (1, 2))]}
    led = {"partitions": [row(0, 5, 2, (0, 1, 2))]}
    expected = PartitionView(TopicPartition("orders", 0), 1, (0, 1, 2), (1, 2), 2)
    for states in ([led, leads, told], [told, leads, led], [leads, told]):
        assert merged_partitions(states) == [expected]
    assert merged_partitions([told, led])[0].min_isr == 0


@contextmanager
def answering(*answers: bytes) -> Iterator[BrokerEntry]:
    """A server that gives these answers, one a connection, and then hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for each in (*answers, b"", b""):
                try:
                    with server.accept()[0] as peer:
                        peer.recv(4096)
                        peer.sendall(each)
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = server.getsockname()[1]
        yield BrokerEntry(0, "PLAINTEXT://127.0.0.1:1", f"127.0.0.1:{port}", "broker-0")
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def response(status: int, content: Any) -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


STATE = {"brokers": [{"id": 0, "is_controller": True}], "partitions": [row(0, 1, 2, (0,))]}


def test_a_broker_that_answers() -> None:
    ready, state = response(200, {}), response(200, STATE)
    with answering(ready, state, ready, state) as entry:
        view = ask_cluster([entry])
        assert view.brokers[0].is_ready
        assert view.brokers[0].is_controller
        assert [each.tp.partition for each in view.under_replicated] == [0]
        assert view.leaderless == []
        assert find_controller([entry]) == 0


@pytest.mark.parametrize(
    ("said", "reasons"),
    [
        ({"brokers": {"0": "caught up"}, "outOfSync": {"0": ["a-0", "b-1"]}},
         ("a-0 is not in sync", "b-1 is not in sync")),
        ({"brokers": {"0": "registered"}, "outOfSync": {}}, ("registered",)),
        ({"brokers": {}, "outOfSync": {}}, ("it opens its logs",)),
        ({}, ("it opens its logs",)),
    ],
)  # fmt: skip
def test_a_broker_that_is_not_ready(said: Any, reasons: tuple[str, ...]) -> None:
    with answering(response(503, {"ready": False, **said}), response(200, STATE)) as entry:
        assert ask_cluster([entry]).brokers[0].reasons == reasons


@pytest.mark.parametrize(
    "answers",
    [
        (b"",),
        (b"garbage\r\n\r\n",),
        (response(200, b"no json"),),
        (response(200, []),),
        (response(200, {}), response(500, {})),
        (response(200, {}), response(200, {"brokers": 7})),
        (response(200, {}), response(200, {"brokers": []})[:-2]),
        (response(503, {"outOfSync": 1}), response(200, STATE)),
        (response(200, {}), response(404, STATE)),
    ],
)
def test_an_answer_that_is_none(answers: tuple[bytes, ...]) -> None:
    """A stranger has the port, or the broker dies in the middle."""
    with answering(*answers) as entry:
        (view,) = ask_cluster([entry]).brokers
        assert entry.http in view.problem
        assert not view.is_ready


def test_an_engine_that_answers_and_one_that_does_not() -> None:
    with answering(b"Zookeeper version\nMode: leader\n") as entry:
        port = entry.addresses[-1][1]
        url = f"zookeeper://127.0.0.1:{port},127.0.0.1:1/chroot"
        view = ask_engine(ClusterFile(EngineEntry(foreign_url=url), ()))
        assert (view.servers, view.answering) == (2, 1)
        assert view.took_ms >= 0
    assert ask_engine(ClusterFile(EngineEntry(foreign_url="kraft://a:1"), ())).servers == 0
