"""A call of librdkafka that waits for good, shown without a broker of ours.

The broker that coordinates a group leaves the metadata, as one that crashed does, and another takes
over. A producer that committed offsets of the group before still remembers the first one. It waits
for it to come back, longer than its time-out, and sends nothing to anybody. A producer without that
memory commits at once. The brokers are those that librdkafka brings along for its own tests.

``python -m tests.clients.librdkafka.removed_coordinator``
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from pathlib import Path

import confluent_kafka as ck

GROUP, TOPIC = "group", "topic"
LEADER, FIRST, SECOND = 1, 2, 3  # of the topic and all transactions; of the group, one after other
TIMEOUT_S = 3.0
WAIT_S = 12.0
_POINTER, _TEXT, _ID = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32


class MockCluster:
    """Three brokers inside the library that confluent-kafka uses."""

    def __init__(self) -> None:
        libraries = Path(ck.__file__).parent.with_name("confluent_kafka.libs")
        (path,) = libraries.glob("librdkafka-*")
        self._library = ctypes.CDLL(str(path))
        self._library.rd_kafka_conf_new.restype = _POINTER
        self._library.rd_kafka_new.restype = _POINTER
        self._library.rd_kafka_mock_cluster_new.restype = _POINTER
        self._library.rd_kafka_mock_cluster_bootstraps.restype = _TEXT
        error = ctypes.create_string_buffer(512)
        conf = _POINTER(self._library.rd_kafka_conf_new())
        client = _POINTER(self._library.rd_kafka_new(0, conf, error, ctypes.c_size_t(len(error))))
        cluster = self._library.rd_kafka_mock_cluster_new(client, 3)
        if cluster is None:
            raise RuntimeError(f"librdkafka has no mock cluster: {error.value.decode()}")
        self._cluster = _POINTER(cluster)
        self._call("topic_create", _TEXT(TOPIC.encode()), 1, 3)
        self._call("partition_set_leader", _TEXT(TOPIC.encode()), _ID(0), _ID(LEADER))

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, f"rd_kafka_mock_{name}")(self._cluster, *arguments)
        if code:
            raise RuntimeError(f"{name}: {code}")

    @property
    def bootstrap_servers(self) -> str:
        found: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return found.decode()

    def coordinate(self, kind: str, key: str, broker_id: int) -> None:
        self._call("coordinator_set", _TEXT(kind.encode()), _TEXT(key.encode()), _ID(broker_id))

    def remove(self, broker_id: int) -> None:
        """It closes its socket, and is in no metadata any more."""
        self._call("broker_decommission", _ID(broker_id))


def _producer(cluster: MockCluster, name: str) -> ck.Producer:
    cluster.coordinate("transaction", name, LEADER)
    producer = ck.Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": name,
            "log_level": 0,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def commit(producer: ck.Producer, offset: int) -> float | None:
    """A transaction with an offset of the group. How many seconds its offset took; None: it was not
    done within ``WAIT_S``."""
    consumer = ck.Consumer({"group.id": GROUP, "bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    metadata = consumer.consumer_group_metadata()
    producer.begin_transaction()
    producer.produce(TOPIC, b"value", partition=0)
    producer.flush(TIMEOUT_S)
    position = ck.TopicPartition(TOPIC, 0, offset)
    begun = time.monotonic()
    call = threading.Thread(
        target=lambda: producer.send_offsets_to_transaction([position], metadata, TIMEOUT_S),
        daemon=True,
    )
    call.start()
    call.join(WAIT_S)
    if call.is_alive():
        return None
    seconds = time.monotonic() - begun
    producer.commit_transaction(TIMEOUT_S)
    return seconds


def _text(seconds: float | None) -> str:
    return f"waits after {WAIT_S:.0f} s" if seconds is None else f"{seconds * 1000:.1f} ms"


def main() -> int:
    """Return 1 if librdkafka does not wait any more: then what we say of it is out of date."""
    cluster = MockCluster()
    cluster.coordinate("group", GROUP, FIRST)
    one = _producer(cluster, "one")
    print(f"librdkafka {ck.libversion()[0]}, with a time-out of {TIMEOUT_S:.0f} s")
    print(f"broker {FIRST} coordinates: {_text(commit(one, 1))}")
    cluster.coordinate("group", GROUP, SECOND)
    cluster.remove(FIRST)
    brokers = sorted(one.list_topics(timeout=TIMEOUT_S).brokers)  # a look at the metadata
    print(f"brokers {brokers} are left, and {SECOND} coordinates")
    print(f"a producer that knew no other: {_text(commit(_producer(cluster, 'two'), 2))}")
    found = commit(one, 3)
    print(f"the producer from before: {_text(found)}")
    return int(found is not None)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the producer that waits would never be destroyed
