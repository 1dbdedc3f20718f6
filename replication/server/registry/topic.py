"""The topic ``_schemas``: one partition, compacted. All that a registry knows is in it.

One thread reads it and applies what is committed. A write is acknowledged when that thread has
applied it: it is on all in-sync replicas then, and whoever asks next finds it.
"""

from __future__ import annotations

import json
import threading

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError, LogstoreError
from logstore.common.types import Record
from logstore.log.reading.fetching import EARLIEST, LATEST
from replication.client import Client, Consumer, Producer
from replication.common.error_codes import ErrorCode
from replication.common.limited_log import LimitedLogger
from replication.embedded import Cluster
from replication.server.registry.state import Code, RegistryError, RegistryState, Value

limited = LimitedLogger(get_logger(__name__))

TOPIC = "_schemas"
WRITE_S = 8.0
"""The time that a write may take, and how long it may wait for those before it."""
LOAD_S = 300.0
PAUSE_S = 0.5  # after the topic could not be read
NOOP: Value = {"keytype": "NOOP", "magic": 0}
NOT_UNDERSTOOD = (ValueError, ArithmeticError, LookupError, TypeError, AttributeError)


class SchemaTopic:
    """Opens the topic, or creates it, and reads it to its end.

    Attributes:
        state: what was applied; to be asked while ``lock`` is held, which nobody holds for long.
    Raises:
        ConfigError: the topic is not one partition, or not compacted.
        RegistryError: it could not be read to its end.
    """

    def __init__(self, cluster: Cluster, read_only: bool) -> None:
        self.state, self.lock = RegistryState(), threading.Condition(threading.Lock())
        tps = cluster.create_topic(TOPIC, config={"cleanup.policy": "compact"}, if_not_exists=True)
        known = cluster.broker(cluster.live_brokers[0]).metadata.topic_config(TOPIC) or {}
        if len(tps) != 1 or known.get("cleanup.policy") != "compact":
            raise ConfigError(f"{TOPIC} is to have one partition, and cleanup.policy=compact")
        shared = cluster.client
        self._client = Client(shared.transport, shared.metadata.brokers, shared.clock)
        self._producer = Producer(self._client, idempotent=True, delivery_timeout_s=WRITE_S)
        self._applied = -1
        self._is_certain = read_only  # no write has an unknown outcome where there are none
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="schema-registry", daemon=True)
        self._thread.start()
        try:
            with self.lock:
                if not self.lock.wait_for(lambda: self._applied >= 0, LOAD_S):
                    raise RegistryError(Code.TIMEOUT, f"{TOPIC} was not read to its end in time")
            self.apply_pending()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop reading; writes that wait fail. Idempotent."""
        self._closed.set()
        self._client.close()
        with self.lock:
            self.lock.notify_all()
        self._thread.join()

    def apply_pending(self) -> None:
        """Apply what writes whose outcome is unknown have left in the log, if there are any: before
        anything is decided, by who then calls ``put``. Raises as ``put``."""
        if not self._is_certain:
            self.put((NOOP, {"maxId": self.state.max_id}))

    def put(self, *records: tuple[Value, Value | None]) -> None:
        """Write records as one batch, and wait until they are applied. One caller at a time.

        Raises:
            RegistryError: refused, or not committed in time: the outcome is unknown.
        """
        deadline, self._is_certain = self._client.now_s() + WRITE_S, False
        batch = [(encode(key), None if value is None else encode(value)) for key, value in records]
        try:
            end = self._producer.send_batch(TOPIC, 0, batch).base_offset + len(batch)
        except LogstoreError as error:
            if getattr(error, "code", None) is ErrorCode.MESSAGE_TOO_LARGE:
                raise RegistryError(Code.SCHEMA_TOO_LARGE) from None
            raise RegistryError(Code.STORE, f"the write to {TOPIC} failed: {error}") from error
        with self.lock:
            self.lock.wait_for(
                lambda: self._applied >= end or self._closed.is_set(),
                deadline - self._client.now_s(),
            )
            self._is_certain = self._applied >= end
        if not self._is_certain:
            raise RegistryError(Code.TIMEOUT, f"the write to {TOPIC} was not read back in time")

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._read()
            except LogstoreError as error:
                if not self._closed.is_set():
                    limited.warning("%s is read again from its start: %s", TOPIC, error)
            self._closed.wait(PAUSE_S)

    def _read(self) -> None:
        """Read from the start, until something ends it: the log was cut, or is another one."""
        tp, state = TopicPartition(TOPIC, 0), RegistryState()
        consumer = Consumer(self._client, [tp], reset=None)
        self._applied = -1
        position, end = (consumer.offset_for(tp, each) for each in (EARLIEST, LATEST))
        consumer.seek(tp, position)
        while not self._closed.is_set():
            if position >= end:
                with self.lock:
                    self.state, self._applied = state, position
                    self.lock.notify_all()
            for _, record in consumer.poll():
                self._apply(state, record)
            position = consumer.positions[tp] or 0

    def _apply(self, state: RegistryState, record: Record) -> None:
        """Apply a record. One that makes no sense is passed over, as by Confluent's registry."""
        try:
            key = json.loads(record.key or b"")
            value = None if record.value is None else json.loads(record.value)
            identity = b""
            if key["keytype"] == "SCHEMA" and value is not None:
                identity = state.identity(value)  # while nobody waits for the lock
            with self.lock:
                state.apply(key, value, identity)
        except (*NOT_UNDERSTOOD, RecursionError) as error:
            limited.warning("offset %d of %s is passed over: %r", record.offset, TOPIC, error)


def encode(value: Value) -> bytes:
    """As Jackson writes it, so that the bytes of a key are those of other registries."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
