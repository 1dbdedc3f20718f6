"""What brokers ask of the controller (W-27): the controller of the broker that is asked carries it
out or refuses it, and nobody else.

Clients may ask any broker, which asks the controller for them. If the request of a broker went on
like that, two brokers that take each other for the controller would send it to and fro. So what is
marked as forwarded gets NOT_CONTROLLER, and its sender looks for the controller again. The sender
also waits until it shows its client what was changed; here the answer comes as soon as the change
is made. Only brokers may forward (X-62).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from replication.apis.common.handlers import Handler, Handlers, ReceivedRequest, Reply
from replication.apis.common.waits import MAX_CHANGES, TOO_MANY
from replication.broker.broker import Broker
from replication.common.gathering import Gathering
from replication.common.messages import Request, Response, TopicResponse
from replication.network import CLOSE
from replication.protocol import ApiKey
from replication.wire import elections, topics


class Translated(NamedTuple):
    """
    Attributes:
        questions: the requests in a message; the answer already where one cannot be read.
        answer: the message that answers one, of the answers to its questions, in a version.
    """

    questions: Callable[[Any], Sequence[Request | TopicResponse]]
    answer: Callable[[Any, Sequence[Any], int], Any]


OF_CONTROLLER: Mapping[ApiKey, Translated] = {
    ApiKey.CREATE_TOPICS: Translated(topics.creations_from, topics.created_to),
    ApiKey.DELETE_TOPICS: Translated(
        topics.deletions_from,
        lambda asked, found, version: topics.deleted_to(
            topics.deletions_from(asked), found, version
        ),
    ),
    ApiKey.CREATE_PARTITIONS: Translated(
        lambda asked: [topics.growth_from(each, asked.validate_only) for each in asked.topics],
        lambda asked, found, version: topics.grown_to(asked.topics, found),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Translated(
        topics.alterations_from,
        lambda asked, found, version: topics.altered_to(asked.resources, found),
    ),
    ApiKey.ELECT_LEADERS: Translated(
        lambda asked: [elections.election_from(asked)],
        lambda asked, found, version: elections.elected_to(asked, found[0], version),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Translated(
        lambda asked: [elections.reassignment_from(asked)],
        lambda asked, found, version: elections.reassigned_to(asked, found[0]),
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Translated(
        lambda asked: [elections.listing_from(asked)],
        lambda asked, found, version: elections.listed_to(found[0]),
    ),
}


def not_forwarding(broker: Broker, of_clients: Handlers) -> Handlers:
    """The same handlers, for the requests of brokers, too."""
    return {
        key: _Handler(broker, OF_CONTROLLER[key], handler) if key in OF_CONTROLLER else handler
        for key, handler in of_clients.items()
    }


class _Handler:
    def __init__(self, broker: Broker, translated: Translated, of_clients: Handler) -> None:
        self._broker, self._translated, self._of_clients = broker, translated, of_clients

    def __call__(self, received: ReceivedRequest, message: Any, reply: Reply) -> None:
        if not message.forwarded:
            self._of_clients(received, message, reply)
            return

        def finish(answers: Sequence[Response | None]) -> None:
            if None in answers:  # this broker stops, and what it has done is not known
                reply(CLOSE)
            else:
                reply(self._translated.answer(message, answers, received.api_version))

        questions = self._translated.questions(message)
        gathering: Gathering[Response | None] = Gathering(len(questions), finish)
        for at, question in enumerate(questions):
            if isinstance(question, TopicResponse):
                gathering.take_answer(at, question)
            elif at >= MAX_CHANGES:
                gathering.take_answer(at, TOO_MANY)
            else:
                self._broker.handle(question, partial(gathering.take_answer, at))
