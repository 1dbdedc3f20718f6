"""Work on an adopted cluster by the ids and names that it has from before."""

from __future__ import annotations

import re
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from replication.protocol import ApiKey
from replication.protocol import messages as wire
from tests.adopt.reading import Picture
from tests.support.until import patience, until
from tests.support.wire_client import WireClient

FENCED = {47, 90}  # INVALID_PRODUCER_EPOCH, PRODUCER_FENCED
NOT_YET = {14, 15, 16, 51}  # loading, not available, not coordinator, concurrent transactions
_TRANSACTION = re.compile("transaction/.*/producer")
KEYS = ("left-open", "copier", "steady")


def go_on(bootstrap: str, before: Picture) -> None:
    """Producers of before are fenced, new ones have ids of their own; groups go on where they
    were; topics can be made and deleted."""
    settings = {"bootstrap.servers": bootstrap, "log_level": 0}
    _old_producers_are_fenced(bootstrap, before)
    _new_ids_are_new(bootstrap, before)
    for name in KEYS:
        producer = Producer({**settings, "transactional.id": name})
        producer.init_transactions(patience())
        for ends_well in (True, False, True):
            producer.begin_transaction()
            for number in range(10):
                producer.produce("in-transactions", b"after %d" % number, b"key", partition=0)
            if ends_well:
                producer.commit_transaction(patience())
            else:
                producer.abort_transaction(patience())
    once = Producer({**settings, "enable.idempotence": True})
    for number in range(30):
        once.produce("plain", b"after %d" % number, partition=number % 3)
    assert once.flush(patience()) == 0
    _groups_go_on(settings, before)
    admin = AdminClient(settings)
    (made,) = admin.create_topics([NewTopic("made-here", 2, 1)]).values()
    made.result(patience())
    (deleted,) = admin.delete_topics(["made-here"], operation_timeout=30).values()
    deleted.result(patience())


def _old_producers_are_fenced(bootstrap: str, before: Picture) -> None:
    host, port = bootstrap.split(",")[0].rsplit(":", 1)
    kind = wire.AddPartitionsToTxnRequest
    topic = kind.AddPartitionsToTxnTopic("in-transactions", (0,))
    with WireClient(host, int(port)) as client:
        for name in KEYS:
            producer = before.get(f"transaction/{name}/producer")
            if producer is None:
                continue  # this Kafka does not tell
            request = kind(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=producer[0],
                v3_and_below_producer_epoch=producer[1],
                v3_and_below_topics=(topic,),
            )
            if before[f"transaction/{name}/state"][1] != "Ongoing":
                continue  # such a producer has ended all that it began, and may go on

            def code(request: wire.AddPartitionsToTxnRequest = request) -> int | None:
                answer = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request)
                ((found,),) = (t.results_by_partition for t in answer.results_by_topic_v3_and_below)
                return None if found.partition_error_code in NOT_YET else found.partition_error_code

            assert until(code, f"an answer for {name}") in FENCED


def _new_ids_are_new(bootstrap: str, before: Picture) -> None:
    host, port = bootstrap.split(",")[0].rsplit(":", 1)
    known = [int(path.rsplit("/", 1)[1]) for path in before if _is_producer(path)]
    known += [value[0] for path, value in before.items() if _TRANSACTION.fullmatch(path)]
    with WireClient(host, int(port)) as client:
        request = wire.InitProducerIdRequest(None, 60_000)

        def given() -> Any:
            answer = client.ask(ApiKey.INIT_PRODUCER_ID, 4, request)
            return None if answer.error_code in NOT_YET else answer  # the first asks for a block

        answer = until(given, "a producer id")
        assert (answer.error_code, answer.producer_id > max(known, default=-1)) == (0, True)


def _is_producer(path: str) -> bool:
    return path.startswith("producers/") and path.rsplit("/", 1)[1].isdigit()


def _groups_go_on(settings: dict[str, object], before: Picture) -> None:
    """A consumer of the group begins at what was committed, and what it commits is kept."""
    consumer = Consumer({**settings, "group.id": "noted", "auto.offset.reset": "error"})
    try:
        consumer.assign([TopicPartition("plain", 0)])
        message = until(lambda: consumer.poll(1.0), "the next record of the group")
        assert message.error() is None, message.error()
        assert message.offset() >= before["group/noted/plain/0/committed"][1]
        consumer.commit(message, asynchronous=False)
    finally:
        consumer.close()
