"""CreateTopics, DeleteTopics and CreatePartitions (W-25).

The controller carries them out, whichever broker a request came to (W-27).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from checkpoints.types import TopicPartition
from replication.apis.common.config import ApisConfig
from replication.apis.common.handlers import ApiArea, ReceivedRequest, Reply
from replication.apis.common.topic_names import TopicNameOrId, is_valid
from replication.apis.common.waits import MetadataWaits, ask_all
from replication.apis.configs import too_small_segment, topic_configs
from replication.apis.metadata import is_led
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.errors import ResponseError
from replication.common.internal_topics import INTERNAL_TOPICS
from replication.common.messages import (
    BROKER_DEFAULT,
    DeleteTopicRequest,
    Request,
    TopicResponse,
)
from replication.common.topic_configs import check_topic_config
from replication.protocol import ZERO_UUID
from replication.protocol import messages as wire
from replication.wire import topics as codec

DELETION_LOOK_MS = 20  # whether the controller is done with it
FIRST_WITH_DISABLED = 3  # of DeleteTopics: TOPIC_DELETION_DISABLED

MAX_DESCRIBED = 1000
"""How many topics of CreateTopics are answered with their configuration, which has some 4 KB."""

FIXED_PARTITIONS = TopicResponse(
    ErrorCode.INVALID_PARTITIONS,
    "groups and transactional ids have their places in the partitions that there are",
)
LEAST_ASK_MS = 1000  # how long the controller may take even if the client does not want to wait


class TopicsApi(ApiArea):
    """Creates, extends and deletes topics. Each topic asked for gets one result."""

    def __init__(self, broker: Broker, config: ApisConfig, waits: MetadataWaits) -> None:
        self._broker = broker
        self._metadata = broker.metadata
        self._config = config
        self._waits = waits

    def _carry_out(
        self,
        count: int,
        question: Callable[[int], Request | TopicResponse],
        timeout_ms: int,
        finish: Callable[[Sequence[TopicResponse]], None],
        is_shown: Callable[[int], bool] | None,
        is_early: Callable[[int, TopicResponse], bool] = lambda at, answer: False,
    ) -> None:
        """Change so many topics; each question is a request to the controller, or its answer.

        Args:
            finish: gets the answers when this broker shows all that was changed, or after
                ``timeout_ms``.
            is_shown: whether it shows that change; None: nothing is changed.
            is_early: whether an answer is no last word: the question is put again in a moment.
        """
        runtime = self._broker.runtime
        deadline_ms = runtime.now_ms() + timeout_ms

        def ask(questions: Sequence[Request | TopicResponse], wait_ms: float) -> None:
            ask_all(self._broker, questions, asked, max(LEAST_ASK_MS, int(wait_ms)))

        def asked(answers: Sequence[TopicResponse]) -> None:
            left_ms = deadline_ms - runtime.now_ms()
            early = {at for at, answer in enumerate(answers) if is_early(at, answer)}
            if early and left_ms > 0:
                again = [question(at) if at in early else each for at, each in enumerate(answers)]
                runtime.call_later(min(left_ms, DELETION_LOOK_MS), lambda: ask(again, left_ms))
                return
            changed = [at for at, each in enumerate(answers) if each.error_code is ErrorCode.NONE]
            if is_shown is None or not changed:
                finish(answers)
                return
            shown = is_shown
            self._waits.until(lambda: all(map(shown, changed)), left_ms, lambda _: finish(answers))

        ask([question(at) for at in range(count)], timeout_ms)

    # -- CreateTopics --------------------------------------------------------------------------

    def create_topics(
        self, received: ReceivedRequest, request: wire.CreateTopicsRequest, reply: Reply
    ) -> None:
        """Answered when this broker knows a leader for each partition, or after the time-out.

        A name stays taken for a moment after its topic was deleted. Clients do not see that.
        """
        named = Counter(topic.name for topic in request.topics)
        topics = {topic.name: topic for topic in request.topics}  # a repeated name once
        names = list(topics)

        def question(at: int) -> Request | TopicResponse:
            name = names[at]
            if named[name] > 1:
                return TopicResponse(ErrorCode.INVALID_REQUEST, f"topic {name!r} twice")
            try:
                topic = topics[name]
                config = codec.config_from(topic)
                _check(config)  # what is wrong with it comes before an assignment
                return codec.creation_from(topic, request.validate_only, config)
            except ResponseError as error:
                # A name that cannot be had comes before any other fault.
                if not is_valid(name):
                    code, reason = ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name!r} names no topic"
                elif self._metadata.topic_id(name) is not None:
                    code, reason = ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists"
                else:
                    code, reason = error.code, str(error)
                return TopicResponse(code, reason)

        def finish(answers: Sequence[TopicResponse]) -> None:
            results = [
                self._created(topics[name], answer, request.validate_only)
                for name, answer in zip(names, answers, strict=True)
            ]
            results[MAX_DESCRIBED:] = map(_without_configs, results[MAX_DESCRIBED:])
            reply(wire.CreateTopicsResponse(topics=tuple(results)))

        self._carry_out(
            len(names),
            question,
            request.timeout_ms,
            finish,
            None if request.validate_only else lambda at: is_led(self._broker, names[at]),
            lambda at, answer: self._is_being_deleted(names[at], answer),
        )

    def _is_being_deleted(self, name: str, answer: TopicResponse) -> bool:
        """Whether the controller still has a topic that clients do not see any more."""
        is_taken = answer.error_code is ErrorCode.TOPIC_ALREADY_EXISTS
        return is_taken and not self._metadata.partition_count(name)

    def _created(
        self,
        topic: wire.CreateTopicsRequest.CreatableTopic,
        answer: TopicResponse,
        validate_only: bool,
    ) -> wire.CreateTopicsResponse.CreatableTopicResult:
        kind = wire.CreateTopicsResponse.CreatableTopicResult
        if answer.error_code is not ErrorCode.NONE:
            return kind(
                topic.name,
                error_code=answer.error_code,
                error_message=answer.error_message or None,
            )
        config = {each.name: each.value or "" for each in topic.configs}
        defaults = self._broker.config
        configs = tuple(
            wire.CreateTopicsResponse.CreatableTopicConfigs(
                each.name,
                config.get(each.name, each.value),  # as it was given
                each.read_only,
                each.config_source,
                each.is_sensitive,
            )
            for each in topic_configs(self._broker.log_manager.config, config)
        )
        if topic.assignments:
            count, factor = len(topic.assignments), len(topic.assignments[0].broker_ids)
        else:
            count, factor = topic.num_partitions, topic.replication_factor
            count = defaults.num_partitions if count == BROKER_DEFAULT else count
            factor = defaults.default_replication_factor if factor == BROKER_DEFAULT else factor
        if validate_only:
            return kind(topic.name, ZERO_UUID, 0, None, 0, count, factor, configs)
        if not is_led(self._broker, topic.name):
            return kind(
                topic.name,
                error_code=ErrorCode.REQUEST_TIMED_OUT,
                error_message=f"the topic is made, and {self._how_far(topic.name, count)}",
            )
        topic_id = self._metadata.topic_id(topic.name) or ZERO_UUID
        return kind(topic.name, topic_id, 0, None, 0, count, factor, configs)

    def _how_far(self, topic: str, count: int) -> str:
        """What there is of a topic whose client waits no longer."""
        led = sum(map(self._broker.knows_leader, self._metadata.partitions_of(topic)))
        here = self._broker.replica_manager.partitions  # of all topics: not looked through for one
        made = sum(TopicPartition(topic, number) in here for number in range(count))
        known = f"leaders of {led} of {count} partitions are known in time"
        return f"{known}; {made} replicas are here so far"

    # -- DeleteTopics --------------------------------------------------------------------------

    def delete_topics(
        self, received: ReceivedRequest, request: wire.DeleteTopicsRequest, reply: Reply
    ) -> None:
        """Answered when this broker does not know the topics any more, or after the time-out."""
        asked_for = [TopicNameOrId(name, ZERO_UUID) for name in request.topic_names]
        asked_for += [TopicNameOrId(topic.name, topic.topic_id) for topic in request.topics]
        by_name = Counter(each.name for each in asked_for if each.name is not None)
        by_id = Counter(each.topic_id for each in asked_for if each.topic_id != ZERO_UUID)
        # A topic that stands twice is answered once. What names none stands for itself each time.
        nameless = TopicNameOrId(None, ZERO_UUID)
        once = {(each, at if each == nameless else 0): each for at, each in enumerate(asked_for)}
        # Looked up before anything is deleted: an answer names the topic that an id stood for.
        wanted = [self._deletion(each) for each in once.values()]
        disabled = ErrorCode.TOPIC_DELETION_DISABLED
        if received.api_version < FIRST_WITH_DISABLED:
            disabled = ErrorCode.INVALID_REQUEST

        def question(at: int) -> Request | TopicResponse:
            each, _, known = wanted[at]
            if not self._config.delete_topic_enable:
                return TopicResponse(disabled, "delete.topic.enable is false")
            if (each.name is None) == (each.topic_id == ZERO_UUID):
                return TopicResponse(ErrorCode.INVALID_REQUEST, "a name or an id, and not both")
            if by_name[each.name or ""] > 1 or by_id[each.topic_id] > 1:
                return TopicResponse(ErrorCode.INVALID_REQUEST, "a topic twice")
            # By its id where that is known: a copy of this request that comes late must not
            # delete the next topic of the name.
            return DeleteTopicRequest(topic=each.name if known is None else None, topic_id=known)

        def finish(answers: Sequence[TopicResponse]) -> None:
            results = [*map(self._deleted, wanted, answers)]
            named = (topic for topic, _ in results)
            told = (answer for _, answer in results)
            reply(codec.deleted_to(named, told, received.api_version))

        self._carry_out(
            len(wanted), question, request.timeout_ms, finish, lambda at: self._is_gone(wanted[at])
        )

    def _deletion(self, asked: TopicNameOrId) -> _Deletion:
        if asked.name is None:
            return _Deletion(asked, self._metadata.topic_name(asked.topic_id), asked.topic_id)
        return _Deletion(asked, asked.name, self._metadata.topic_id(asked.name))

    def _is_gone(self, deletion: _Deletion) -> bool:
        _, name, known = deletion
        return name is None or known is None or self._metadata.topic_id(name) != known

    def _deleted(
        self, deletion: _Deletion, answer: TopicResponse
    ) -> tuple[tuple[str | None, uuid.UUID | None], TopicResponse]:
        """How the answer names the topic, and what it says."""
        asked, code = deletion.asked, answer.error_code
        if code is ErrorCode.NONE and not self._is_gone(deletion):
            code = ErrorCode.REQUEST_TIMED_OUT
        if code is ErrorCode.UNKNOWN_TOPIC_ID and asked.name is not None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        is_found = code not in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INVALID_REQUEST)
        named = deletion[1:] if is_found else asked
        return named, answer._replace(error_code=code)

    # -- CreatePartitions ----------------------------------------------------------------------

    def create_partitions(
        self, received: ReceivedRequest, request: wire.CreatePartitionsRequest, reply: Reply
    ) -> None:
        """Answered when this broker knows a leader for each new partition, or after the
        time-out."""
        named = Counter(topic.name for topic in request.topics)
        topics = [*{topic.name: topic for topic in request.topics}.values()]

        def question(at: int) -> Request | TopicResponse:
            topic = topics[at]
            if named[topic.name] > 1:
                return TopicResponse(ErrorCode.INVALID_REQUEST, "a topic twice")
            if topic.name in INTERNAL_TOPICS:
                return FIXED_PARTITIONS
            return codec.growth_from(topic, request.validate_only)

        def has_grown(at: int) -> bool:
            name, count, _ = topics[at]
            tps = self._metadata.partitions_of(name)
            return len(tps) >= count and is_led(self._broker, name)

        def finish(answers: Sequence[TopicResponse]) -> None:
            told = [
                TopicResponse(
                    ErrorCode.REQUEST_TIMED_OUT, self._how_far(topics[at].name, topics[at].count)
                )
                if each.error_code is ErrorCode.NONE
                and not request.validate_only
                and not has_grown(at)
                else each
                for at, each in enumerate(answers)
            ]
            reply(codec.grown_to(topics, told))

        is_shown = None if request.validate_only else has_grown
        self._carry_out(len(topics), question, request.timeout_ms, finish, is_shown)


class _Deletion(NamedTuple):
    """A topic to delete: as the request names it, its name and id where they are known."""

    asked: TopicNameOrId
    name: str | None
    topic_id: uuid.UUID | None


def _without_configs(
    created: wire.CreateTopicsResponse.CreatableTopicResult,
) -> wire.CreateTopicsResponse.CreatableTopicResult:
    """The same, and in place of the configuration why it is not there (W-237)."""
    if not created.configs:
        return created
    return created._replace(configs=None, topic_config_error_code=ErrorCode.POLICY_VIOLATION)


def _check(config: Mapping[str, str]) -> None:
    """
    Raises:
        ResponseError: no client may have it.
    """
    small = too_small_segment(config.items())
    if small is not None:
        raise ResponseError(small.error_code, small.error_message)
    check_topic_config(config)
