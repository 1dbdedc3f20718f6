"""The source as its metadata show it, and the questions that a mirror asks beside its fetches."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

from checkpoints.types import TopicPartition
from logstore.common.config import LogConfig
from logstore.common.errors import ConfigError
from logstore.log.reading.fetching import LATEST
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    Response,
)
from replication.common.state import NO_LEADER, UNKNOWN_EPOCH
from replication.common.topic_configs import THROTTLED
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.wire.calls import Translation
from replication.wire.lane import OpenCall
from replication.wire.transport import TcpTransport

TOPICS_AT_ONCE = 200  # of a question for configurations
CONFIGS_KEPT = 256  # different ones; of thousands of topics most have the same
ConfigValues = Mapping[str, str | None]
_TOPIC = 2  # the kind of a resource


class SourceLeader(NamedTuple):
    """``leader_id`` is `NO_LEADER` while nobody leads, or nobody that can be reached."""

    leader_id: int
    leader_epoch: int


class SourceTopic(NamedTuple):
    """``topic_id`` is None if the source is too old for ids."""

    topic_id: uuid.UUID | None
    partitions: Mapping[int, SourceLeader]


class SourceView(NamedTuple):
    """The content of one answer.

    Attributes:
        topics: those with partitions.
        refused: those that the source names with an error.
    """

    cluster_id: str | None
    topics: Mapping[str, SourceTopic]
    refused: Mapping[str, ErrorCode] = {}


def view_of(answer: MetadataResponse) -> SourceView:
    """The view that an answer gives."""
    live = {each.registration.broker_id for each in answer.brokers}
    partitions: dict[str, dict[int, SourceLeader]] = {}
    for part in answer.partitions:
        leads = part.leader_id in live and part.leader_epoch != UNKNOWN_EPOCH
        leader_id = part.leader_id if leads else NO_LEADER
        leader = SourceLeader(leader_id, part.leader_epoch)
        if part.tp.partition >= 0:
            partitions.setdefault(part.tp.topic, {})[part.tp.partition] = leader
    return SourceView(
        answer.cluster_id,
        {
            topic: SourceTopic(answer.topic_ids.get(topic), own)
            for topic, own in partitions.items()
            if topic not in answer.topic_errors
        },
        answer.topic_errors,
    )


def named_by_most(
    topics: Collection[str], answers: Sequence[MetadataResponse]
) -> dict[str, uuid.UUID]:
    """The ids of topics that more than half of all brokers name, each of which has one answer. How
    many there are says the answer that knows the most: one behind the others counts the dead."""
    most = max((len(answer.brokers) for answer in answers), default=0) // 2
    found = {}
    for topic in topics:
        ids = (answer.topic_ids.get(topic) for answer in answers)
        named = Counter(each for each in ids if each is not None)
        for topic_id, count in named.most_common(1):
            if count > most:
                found[topic] = topic_id
    return found


def known_config(values: ConfigValues) -> Mapping[str, str]:
    """The keys that a log here has, where their values make sense to it. Which replicas a quota
    holds back is left out: those are brokers of the source."""
    return _known_config(tuple(values.items()))


@lru_cache(CONFIGS_KEPT)
def _known_config(values: tuple[tuple[str, str | None], ...]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for key, value in values:
        if value is None or key in THROTTLED:
            continue
        try:
            LogConfig.from_properties({**found, key: value})
        except ConfigError:
            continue  # of a later release, or of nobody
        found[key] = value
    return MappingProxyType(found)


class MirrorSource:
    """Asks brokers of the source. Callbacks come on the transport's thread, and must be short."""

    def __init__(self, transport: TcpTransport, timeout_ms: int) -> None:
        self._transport = transport
        self._timeout_ms = timeout_ms
        self._asked = 0

    def ask_view(self, on_view: Callable[[SourceView | None], None]) -> None:
        """Ask one broker after the other, beginning with the next one each time; None: nobody
        answers."""
        brokers = self._transport.brokers()
        self._asked += 1
        first = self._asked % max(1, len(brokers))
        self._ask_next(brokers[first:] + brokers[:first], on_view)

    def _ask_next(self, brokers: list[int], on_view: Callable[[SourceView | None], None]) -> None:
        if not brokers:
            on_view(None)
            return

        def on_reply(response: Response | None) -> None:
            # One without brokers in its answer has just started, and knows nothing yet.
            if isinstance(response, MetadataResponse) and response.brokers:
                on_view(view_of(response))
            else:
                self._ask_next(brokers[1:], on_view)

        self._transport.send(brokers[0], MetadataRequest(), on_reply, self._timeout_ms)

    def ask_configs(
        self,
        topics: Sequence[str],
        on_configs: Callable[[Mapping[str, ConfigValues], Mapping[str, str]], None],
    ) -> None:
        """Ask for configurations: ``on_configs`` gets those, and why others are not known. It comes
        once for each piece of the topics."""
        for at in range(0, len(topics), TOPICS_AT_ONCE):
            self._ask_configs(topics[at : at + TOPICS_AT_ONCE], on_configs)

    def _ask_configs(
        self,
        topics: Sequence[str],
        on_configs: Callable[[Mapping[str, ConfigValues], Mapping[str, str]], None],
    ) -> None:
        kind = wire.DescribeConfigsRequest
        request = kind(tuple(kind.DescribeConfigsResource(_TOPIC, name, None) for name in topics))

        def on_reply(answer: Any) -> None:
            results = () if answer is None else answer.results
            found, refused = {}, dict.fromkeys(topics, "no answer")
            for each in results:
                if each.error_code:
                    refused[each.resource_name] = ErrorCode(each.error_code).name
                else:
                    found[each.resource_name] = {e.name: e.value for e in each.configs}
                    refused.pop(each.resource_name, None)
            on_configs(found, refused)

        as_it_is = Translation(
            ApiKey.DESCRIBE_CONFIGS, lambda given, _: given, lambda _, answer, __: answer
        )
        call = OpenCall(request, as_it_is, on_reply, reports_failure=True)
        brokers = self._transport.brokers()
        self._transport.call(brokers[self._asked % len(brokers)], call, self._timeout_ms)

    def ask_ids(
        self, topics: Collection[str], on_ids: Callable[[Mapping[str, uuid.UUID]], None]
    ) -> None:
        """Ask every broker for the ids of topics. ``on_ids`` gets those that more than half of all
        brokers name; who does not answer names none."""
        brokers = [each for each in self._transport.brokers() if each >= 0]  # no address twice
        answers: list[MetadataResponse | None] = []

        def on_reply(response: Response | None) -> None:
            answers.append(response if isinstance(response, MetadataResponse) else None)
            if len(answers) == len(brokers):
                on_ids(named_by_most(topics, [each for each in answers if each is not None]))

        for broker in brokers:
            self._transport.send(broker, MetadataRequest(), on_reply, self._timeout_ms)

    def ask_ends(
        self,
        leaders: Mapping[TopicPartition, int],
        on_ends: Callable[[Mapping[TopicPartition, int]], None],
    ) -> None:
        """Ask for high watermarks. ``on_ends`` comes once for each leader, with what it answers."""
        for leader_id, tps in _by_leader(leaders).items():
            request = ListOffsetsRequest(tuple(ListOffsetsPartition(tp, LATEST) for tp in tps))
            self._transport.send(leader_id, request, partial(_on_ends, on_ends), self._timeout_ms)

    def ask_leaderships(
        self,
        leaders: Mapping[TopicPartition, SourceLeader],
        on_confirmed: Callable[[Collection[TopicPartition]], None],
    ) -> None:
        """Ask leaders whether they lead in these epochs. ``on_confirmed`` gets those that do, once
        for each leader."""

        def on_reply(response: Response | None) -> None:
            if isinstance(response, OffsetForLeaderEpochResponse):
                on_confirmed([part.tp for part in response.partitions if not part.error_code])

        by_leader = _by_leader({tp: each.leader_id for tp, each in leaders.items()})
        for leader_id, tps in by_leader.items():
            epochs = [(tp, leaders[tp].leader_epoch) for tp in tps]
            parts = tuple(OffsetForLeaderPartition(tp, epoch, epoch) for tp, epoch in epochs)
            request = OffsetForLeaderEpochRequest(parts)
            self._transport.send(leader_id, request, on_reply, self._timeout_ms)


def _by_leader(leaders: Mapping[TopicPartition, int]) -> dict[int, list[TopicPartition]]:
    found: dict[int, list[TopicPartition]] = {}
    for tp, leader_id in leaders.items():
        found.setdefault(leader_id, []).append(tp)
    return found


def _on_ends(
    on_ends: Callable[[Mapping[TopicPartition, int]], None], response: Response | None
) -> None:
    parts = response.partitions if isinstance(response, ListOffsetsResponse) else ()
    on_ends({part.tp: part.offset for part in parts if not part.error_code and part.offset >= 0})


__all__ = [
    "ConfigValues",
    "MirrorSource",
    "SourceLeader",
    "SourceTopic",
    "SourceView",
    "known_config",
    "named_by_most",
    "view_of",
]
