"""One broker that a sequence is carried out on: connections, requests that wait, names."""

from __future__ import annotations

import math
import select
import socket
import struct
import time
from collections import deque

from replication.protocol import (
    ZERO_UUID,
    ApiKey,
    ProtocolError,
    decode_response,
    encode_request,
    parse_response_header,
    request_header,
    schema,
)
from tests.differential.steps import Names, Step, Tree, to_message, to_tree

AGAIN = {14, 15, 16, 51}  # loading, not available, not coordinator, concurrent transactions
AGAIN_S = 30.0
PAUSE_S = 0.01
READY_S = 30.0
NODE = 1  # the id of every broker, ``@node:0`` in trees
BARRIER = "barrier"
WAITED = "waited"
WAIT_MS = 400
"""A request that may wait for so long, and was answered only then, has that in the tree of its
answer. Other times are those of the machine."""
ENDED = ("Empty", "CompleteCommit", "CompleteAbort")


class Broker:
    """Asked step by step; answers are trees in this broker's order of arrival.

    Args:
        address: host and port.
    """

    def __init__(self, address: str) -> None:
        host, port = address.split(",")[0].rsplit(":", 1)
        self._address = host, int(port)
        self.names = Names()
        self._sockets: dict[str, socket.socket] = {}
        self._waiting: dict[str, deque[tuple[int, Step]]] = {}
        self._started_s: dict[int, float] = {}
        self._sent_s: dict[int, float] = {}  # also when it was asked again
        self._buffers: dict[str, bytearray] = {}
        self._barriers = 0
        self.begin()

    def begin(self) -> None:
        """A new sequence: forget names and connections."""
        self.close()
        self._started_s.clear()
        self.names = Names()
        self.names.name("node", NODE, "@node:0")
        self.names.name("broker", str(NODE), "@broker:0")
        self.names.name("port", self._address[1], "@port")
        self.names.name("host", self._address[0], "@host")

    def close(self) -> None:
        for each in self._sockets.values():
            each.close()
        self._sockets.clear()
        self._waiting.clear()
        self._buffers.clear()

    @property
    def sockets(self) -> list[socket.socket]:
        return list(self._sockets.values())

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is still to come."""
        return any(self._waiting.values())

    def send(self, number: int, step: Step) -> None:
        """Send the request of ``step``; the answer comes by ``poll`` under its number."""
        self._waiting.setdefault(step.client, deque()).append((number, step))
        self._sent_s[number] = time.monotonic()
        self._started_s.setdefault(number, self._sent_s[number])
        message = to_message(schema.APIS[step.key].name + "Request", step.request, self.names)
        body = bytes(encode_request(message, step.version))
        frame = request_header(step.key, step.version, number & 0xFFFF, step.client) + body
        if step.client not in self._sockets:
            self._sockets[step.client] = socket.create_connection(self._address, 30)
            self._buffers[step.client] = bytearray()
        self._sockets[step.client].sendall(struct.pack(">i", len(frame)) + frame)

    def poll(self, timeout_s: float) -> dict[int, Tree]:
        """Answers that arrived, by the numbers of their steps; "closed" instead of those that will
        not come."""
        ready, _, _ = select.select(list(self._sockets.values()), [], [], timeout_s)
        found: dict[int, Tree] = {}
        for client, one in list(self._sockets.items()):
            if one in ready:
                try:
                    data = one.recv(1 << 20)
                except OSError:
                    data = b""
                if not data:
                    self._lose(client, found)
                    continue
                self._buffers[client] += data
                self._take(client, found)
        return found

    def _lose(self, client: str, found: dict[int, Tree]) -> None:
        self._sockets.pop(client).close()
        for number, _ in self._waiting.pop(client, ()):
            found[number] = "closed"

    def _take(self, client: str, found: dict[int, Tree]) -> None:
        buffer = self._buffers[client]
        while len(buffer) >= 4:
            size = int.from_bytes(buffer[:4], "big")
            if len(buffer) < 4 + size:
                return
            frame = memoryview(bytes(buffer[4 : 4 + size]))
            del buffer[: 4 + size]
            number, step = self._waiting[client].popleft()
            try:
                _, at = parse_response_header(frame, step.key, step.version)
                answer = decode_response(step.key, step.version, frame[at:])
            except ProtocolError as error:
                found[number] = f"unreadable: {error}"
                continue
            if self._is_early(number, answer):
                time.sleep(PAUSE_S)
                self.send(number, step)
                continue
            if step.key is ApiKey.CREATE_TOPICS and step.request.get("validate_only"):
                # Kafka gives ids that no topic ever has, and they would have names here.
                made = (each._replace(topic_id=ZERO_UUID) for each in answer.topics)
                answer = answer._replace(topics=tuple(made))
            found[number] = to_tree(step.key, step.version, answer, self.names)
            took_ms = (time.monotonic() - self._sent_s[number]) * 1000
            if not step.may_wait and took_ms >= _limit_ms(step):
                found[number][WAITED] = True

    def _is_early(self, number: int, answer: object) -> bool:
        """Whether a coordinator is not ready yet: asked again, it gives another answer."""
        if not _codes(answer) & AGAIN:
            return False
        return time.monotonic() < self._started_s[number] + AGAIN_S

    def ask(self, step: Step) -> Tree:
        """Send and wait for this one answer; nothing else may be waiting on the client."""
        self.send(-1, step)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            for number, answer in self.poll(0.1).items():
                if number == -1:
                    self._started_s.pop(-1)
                    return answer
        raise TimeoutError(f"{step} has no answer")

    def wait_for_end(self, transactional_id: str) -> None:
        """Return when every marker of the id's last transaction is written."""
        request = {"transactional_ids": [transactional_id]}
        step = Step("_looks", ApiKey.DESCRIBE_TRANSACTIONS, 0, request)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            (state,) = self.ask(step)["transaction_states"]
            if state["error_code"] or state["transaction_state"] not in (
                "PrepareCommit",
                "PrepareAbort",
            ):
                return
            time.sleep(PAUSE_S)
        raise TimeoutError(f"{transactional_id} does not end")

    def wait_for_topics(self, names: list[str]) -> None:
        """Return when each of the topics is led, as those who read and write see it."""
        topics = [{"name": each} for each in names]
        request = {"topics": topics, "allow_auto_topic_creation": False}
        self._until_without_error(Step("_looks", ApiKey.METADATA, 8, request))
        found = self.ask(Step("_looks", ApiKey.METADATA, 8, request))["topics"]
        asked = [
            {
                "name": each["name"],
                "partitions": [
                    {"partition_index": part.get("partition_index", 0), "timestamp": -1}
                    for part in each["partitions"]
                ],
            }
            for each in found
        ]
        request = {"replica_id": -1, "topics": asked}
        self._until_without_error(Step("_looks", ApiKey.LIST_OFFSETS, 4, request))

    def wait_for_metadata(self) -> None:
        """Return when what the controller wrote until now can be seen: a later change can."""
        self._barriers += 1
        value = str(1_000_000 + self._barriers)
        resource = {"resource_type": 2, "resource_name": BARRIER}
        config = {"name": "retention.ms", "value": value, "config_operation": 0}
        request = {"resources": [{**resource, "configs": [config]}]}
        self.ask(Step("_looks", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request))
        keys = {**resource, "configuration_keys": ["retention.ms"]}
        step = Step("_looks", ApiKey.DESCRIBE_CONFIGS, 1, {"resources": [keys]})
        end = time.monotonic() + READY_S
        while self.ask(step)["results"][0]["configs"][0]["value"] != value:
            if time.monotonic() > end:
                raise TimeoutError("metadata do not arrive")
            time.sleep(PAUSE_S)

    def wait_without_logs(self, topics: list[Tree]) -> None:
        """Return when no log of these topics is described."""
        step = Step("_looks", ApiKey.DESCRIBE_LOG_DIRS, 1, {"topics": None})
        end = time.monotonic() + READY_S
        while True:
            found = {
                each["name"]
                for directory in self.ask(step)["results"]
                for each in directory.get("topics", ())
            }
            if not found & set(topics):
                return
            if time.monotonic() > end:
                raise TimeoutError(f"logs of {topics} stay")
            time.sleep(PAUSE_S)

    def prepare(self) -> None:
        """Have both coordinators ready, which takes a broker its first seconds."""
        for key_type in (0, 1):
            request = {"key_type": key_type, "coordinator_keys": ["first"]}
            self._until_without_error(Step("_looks", ApiKey.FIND_COORDINATOR, 4, request))
        groups = [{"group_id": "first", "topics": None}]
        self._until_without_error(Step("_looks", ApiKey.OFFSET_FETCH, 8, {"groups": groups}))
        request = {"transactional_id": "first", "transaction_timeout_ms": 60_000}
        self._until_without_error(Step("_looks", ApiKey.INIT_PRODUCER_ID, 0, request))
        topics = [{"name": BARRIER, "num_partitions": 1, "replication_factor": 1}]
        self.ask(Step("_looks", ApiKey.CREATE_TOPICS, 4, {"topics": topics, "timeout_ms": 10_000}))
        self.wait_for_topics([BARRIER])

    def _until_without_error(self, step: Step) -> None:
        end = time.monotonic() + READY_S
        while _has_error(self.ask(step)):
            if time.monotonic() > end:
                raise TimeoutError(f"{step} is answered with errors")
            time.sleep(PAUSE_S)


def _limit_ms(step: Step) -> float:
    """How long a request takes if it waits to its end; infinite if it does not."""
    default = WAIT_MS if step.key is ApiKey.METADATA else 0
    limit: int = step.request.get("max_wait_ms", step.request.get("timeout_ms", default))
    return limit if limit >= WAIT_MS else math.inf


def _has_error(tree: Tree) -> bool:
    if isinstance(tree, dict):
        return bool(tree.get("error_code")) or any(map(_has_error, tree.values()))
    return isinstance(tree, list) and any(map(_has_error, tree))


def _codes(value: object) -> set[int]:
    if not isinstance(value, tuple):
        return set()
    found: set[int] = set()
    for name, each in zip(getattr(value, "_fields", ["" for _ in value]), value, strict=True):
        if name == "error_code":
            found.add(each)
        else:
            found |= _codes(each)
    return found
