"""Changes of topics whose answer is lost, and two of them at once: success is what is there."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.errors import (
    BrokerUnavailableError,
    ReplicationError,
    TopicNotReadyError,
    UnknownPartitionError,
)
from replication.common.messages import CreatePartitionsRequest, Request
from replication.embedded.cluster import Cluster
from replication.embedded.local_brokers import LocalBrokers

ALL = [[0, 1, 2]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def no_topics(cluster: Cluster) -> None:
    if cluster._topics._topic("t") is not None:
        cluster.delete_topic("t")


class LosesAnswers:
    """The first answer of the controller to an admin, after which ``meanwhile`` happens."""

    def __init__(
        self,
        cluster: Cluster,
        monkeypatch: pytest.MonkeyPatch,
        meanwhile: Callable[[], object],
        carried_out: bool,
    ) -> None:
        self.asked = 0
        self._ask, self._meanwhile, self._carried_out = (
            cluster._topics._send,
            meanwhile,
            carried_out,
        )
        monkeypatch.setattr(cluster._topics, "_send", self.ask)

    def ask(self, controller: int, request: Request) -> Any:
        self.asked += 1
        if self.asked > 1:
            return self._ask(controller, request)
        if self._carried_out:
            self._ask(controller, request)
        self._meanwhile()
        raise BrokerUnavailableError("no answer")


Loses = Callable[..., LosesAnswers]


@pytest.fixture
def loses(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Loses:
    def loses(meanwhile: Callable[[], object] = bool, *, carried_out: bool = True) -> LosesAnswers:
        return LosesAnswers(cluster, monkeypatch, meanwhile, carried_out)

    return loses


def code(call: Callable[[], object]) -> tuple[ErrorCode, str]:
    with pytest.raises(ReplicationError) as refused:
        call()
    return refused.value.code, str(refused.value)


def replicas(cluster: Cluster) -> list[tuple[int, ...]]:
    topic = cluster._topics._topic("t")
    assert topic is not None
    return [topic.partitions[number] for number in sorted(topic.partitions)]


class TestGrowth:
    @pytest.mark.parametrize("assignment", [None, [[2, 1, 0]]])
    def test_what_an_earlier_try_did_is_success(
        self, cluster: Cluster, loses: Loses, assignment: list[list[int]] | None
    ) -> None:
        cluster.create_topic("t", assignment=ALL)
        lost = loses()
        assert [
            tp.partition for tp in cluster.create_partitions("t", 2, assignment=assignment)
        ] == [1]
        assert lost.asked == 2
        assert len(replicas(cluster)) == 2

    def test_what_somebody_else_did_is_none(self, cluster: Cluster, loses: Loses) -> None:
        """As many partitions, and other replicas than were asked for."""
        cluster.create_topic("t", assignment=ALL)
        ask = cluster._topics._send
        other = CreatePartitionsRequest("t", 2, ((1, 2, 0),))
        loses(lambda: ask(cluster.controller_id or 0, other), carried_out=False)
        found, text = code(lambda: cluster.create_partitions("t", 2, assignment=[[2, 1, 0]]))
        assert found is ErrorCode.INVALID_PARTITIONS
        assert "is not known" in text
        assert replicas(cluster) == [(0, 1, 2), (1, 2, 0)]

    def test_nor_is_more_than_was_asked_for(self, cluster: Cluster, loses: Loses) -> None:
        cluster.create_topic("t", assignment=ALL)
        ask = cluster._topics._send
        loses(lambda: ask(cluster.controller_id or 0, CreatePartitionsRequest("t", 3)))
        assert "is not known" in code(lambda: cluster.create_partitions("t", 2))[1]

    def test_the_next_topic_of_the_name_is_not_meant(self, cluster: Cluster, loses: Loses) -> None:
        cluster.create_topic("t", assignment=ALL)

        def again() -> None:
            cluster.delete_topic("t")
            cluster.create_topic("t", assignment=ALL)

        loses(again, carried_out=False)
        assert code(lambda: cluster.create_partitions("t", 2))[0] is (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        assert replicas(cluster) == [(0, 1, 2)]

    def test_a_refusal_is_no_success_where_nothing_was_asked_before(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """There was no controller at the first try; what the next one refuses is refused."""
        cluster.create_topic("t", 2)
        known, looks = cluster.client.controller_id, iter([-1])
        monkeypatch.setattr(cluster.client, "controller_id", lambda: next(looks, None) or known())
        assert code(lambda: cluster.create_partitions("t", 2))[0] is ErrorCode.INVALID_PARTITIONS
        assert next(looks, None) is None


class TestCreation:
    @pytest.mark.parametrize("assignment", [None, [[2, 1, 0], [1, 0, 2]]])
    def test_what_an_earlier_try_did_is_success(
        self, cluster: Cluster, loses: Loses, assignment: list[list[int]] | None
    ) -> None:
        lost = loses()
        config = {"min.insync.replicas": 2}
        assert len(cluster.create_topic("t", 2, assignment=assignment, config=config)) == 2
        assert lost.asked == 2

    @pytest.mark.parametrize(
        "other", [{"partitions": 1}, {"replication_factor": 2}, {"config": {"retention.ms": 1}}]
    )
    def test_what_somebody_else_did_is_none(
        self, cluster: Cluster, loses: Loses, other: dict[str, Any]
    ) -> None:
        arguments = {"partitions": 2, "replication_factor": 3, **other}
        loses(lambda: cluster.create_topic("t", **arguments), carried_out=False)
        found, text = code(lambda: cluster.create_topic("t", 2))
        assert found is ErrorCode.TOPIC_ALREADY_EXISTS
        assert "is not known" in text

    def test_one_that_is_deleted_at_once_is_named(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wait = cluster._topics._wait_for_leaders

        def deleted_first(*arguments: Any) -> None:
            cluster.delete_topic("t")
            wait(*arguments)

        monkeypatch.setattr(cluster._topics, "_wait_for_leaders", deleted_first)
        with pytest.raises(UnknownPartitionError, match="any more"):
            cluster.create_topic("t")


class TestConfiguration:
    def test_somebody_else_configures_it_too(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The later value holds, and nobody waits for the earlier one."""
        (tp,) = cluster.create_topic("t")
        ask = cluster._topics._ask_for_topic

        def both(*arguments: Any, **options: Any) -> None:
            ask(*arguments, **options)
            monkeypatch.setattr(cluster._topics, "_ask_for_topic", ask)
            cluster.alter_topic("t", {"retention.ms": 7})

        monkeypatch.setattr(cluster._topics, "_ask_for_topic", both)
        cluster.alter_topic("t", {"retention.ms": 5})
        assert cluster.replica(tp, 1).local_log().config.retention_ms == 7

    @pytest.mark.parametrize("again", [True, False])
    def test_the_topic_goes_meanwhile(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, again: bool
    ) -> None:
        cluster.create_topic("t")
        ask = cluster._topics._ask_for_topic

        def gone(*arguments: Any, **options: Any) -> None:
            ask(*arguments, **options)
            monkeypatch.setattr(cluster._topics, "_ask_for_topic", ask)
            cluster.delete_topic("t")
            if again:
                cluster.create_topic("t")

        monkeypatch.setattr(cluster._topics, "_ask_for_topic", gone)
        with pytest.raises(UnknownPartitionError, match="any more"):
            cluster.alter_topic("t", {"retention.ms": 5})

    def test_the_next_topic_of_the_name_is_not_meant(self, cluster: Cluster, loses: Loses) -> None:
        cluster.create_topic("t")

        def again() -> None:
            cluster.delete_topic("t")
            cluster.create_topic("t")

        loses(again, carried_out=False)
        with pytest.raises(UnknownPartitionError, match="any more"):
            cluster.alter_topic("t", {"retention.ms": 5})
        topic = cluster._topics._topic("t")
        assert topic is not None
        assert topic.config == {}


class TestPatience:
    def test_says_how_far_the_brokers_are(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The topic is there, and its last partition gets its leader later."""
        knows, wait = Broker.knows_leader, cluster.wait_until
        monkeypatch.setattr(
            Broker, "knows_leader", lambda self, tp: tp.partition < 2 and knows(self, tp)
        )
        cluster.create_topic("t", assignment=ALL * 2)
        monkeypatch.setattr(
            cluster,
            "wait_until",
            lambda condition, what, timeout_s, progress: wait(condition, what, 0.01, lambda: 0),
        )
        with pytest.raises(TopicNotReadyError) as caught:
            cluster.create_partitions("t", 3)
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert (caught.value.done, caught.value.total) == (0, 1)
        text = r"0 of 1 partitions of topic 't' have a leader .* which have \d+ replicas; nothing"
        assert re.match(text, str(caught.value))

    def test_as_long_as_something_happens(self) -> None:
        """A second passes at each look. What goes on for ten seconds outlives a limit of three."""
        seconds, done = itertools.count(), []
        cluster: Any = SimpleNamespace(
            _ownership=SimpleNamespace(check=lambda: None),
            _runtime=SimpleNamespace(now_ms=lambda: next(seconds) * 1000),
            _closed=False,
        )

        def progress() -> int:
            done.append(min(len(done), 10))
            return done[-1]

        with pytest.raises(TimeoutError, match="waited 3 s in vain: it"):
            LocalBrokers.wait_until(cluster, lambda: False, "it", 3, progress)
        assert done[-4:] == [10] * 4
        assert len(done) == 10 + 1 + 4
