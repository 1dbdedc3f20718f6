"""The same requests to a real Kafka and to a broker of ours: what is answered differently.

    python -m tests.fuzz.beside_kafka --seconds 60 --seed 1 [--only CREATE_TOPICS,FETCH]

Requests are the well-formed ones of ``tests.fuzz.server``. Compared are the error codes in their
places, with names and numbers of topics and partitions. Each group of differences is printed with
its shortest request. It is a report and no test: some differences are meant, such as the order of
checks, and Kafka answers some requests by its own failures (−1). Findings become tests of their own
in ``tests/conformance``.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from replication.common.error_codes import ErrorCode
from replication.protocol import ApiKey, MalformedMessageError
from replication.protocol import messages as wire
from tests.clients.servers import running
from tests.fuzz.server import TOPICS, Case, make
from tests.support.wire_client import WireClient

SETTINGS: Mapping[str, str | int] = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "auto.create.topics.enable": "false",
}
LEFT_OUT = frozenset(
    {
        ApiKey.JOIN_GROUP,  # waits, and answers with ids of its own
        ApiKey.SYNC_GROUP,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.API_VERSIONS,
    }
)
KEPT = (*TOPICS, "__consumer_offsets", "__transaction_state")  # topics that nobody deletes
OF_THE_PLACE = ("name", "topic", "partition_index", "partition", "index", "key", "group_id")
OF_THE_BROKER = ("configs", "brokers", "node_endpoints", "replica_nodes", "isr_nodes")
TIMEOUT_MS = 5_000  # of an operation: with less, Kafka answers that it had no time
ANSWER_S = 6.0
SHOWN = 5  # differences of one API


class Difference(NamedTuple):
    number: int
    case: Case
    kafka: object
    ours: object


def codes(value: object) -> object:
    """Error codes of a response in their places; what has none, and what only one broker knows, is
    left out. Elements are sorted, and none stands twice: Kafka answers some that were asked twice
    once."""
    if not isinstance(value, tuple):
        return value
    names = getattr(value, "_fields", None)
    if names is None:
        found = {codes(each) for each in value if isinstance(each, tuple)}
        return tuple(sorted(filter(_has_code, found), key=repr))
    kept: list[tuple[str, object]] = []
    for name, each in zip(names, value, strict=True):
        if name.endswith("error_code"):
            kept.append((name, int(each)))
        elif name in OF_THE_PLACE:
            kept.append((name, each))
        elif isinstance(each, tuple) and name not in OF_THE_BROKER and (inner := codes(each)):
            kept.append((name, inner))
    return tuple(kept)


def _has_code(found: object) -> bool:
    return "error_code" in repr(found)


class Asking:
    """One broker, asked request by request."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.split(",")[0].split(":")
        self._address = host, int(port)
        self._client: WireClient | None = None

    def ask(self, key: ApiKey, version: int, request: Any) -> Any:
        """The response, or how there was none."""
        if self._client is None:
            self._client = WireClient(*self._address)
            self._client._socket.settimeout(ANSWER_S)
        try:
            return self._client.ask(key, version, request)
        except (OSError, MalformedMessageError) as error:
            self.close()
            return type(error).__name__

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def prepare(self) -> None:
        """The topics are there, and coordinators answer."""
        kind = wire.CreateTopicsRequest
        topics = tuple(kind.CreatableTopic(name, 2, 1) for name in TOPICS)
        self.ask(ApiKey.CREATE_TOPICS, 7, kind(topics))
        for key_type in (0, 1):
            request = wire.FindCoordinatorRequest(key_type=key_type, coordinator_keys=("g",))
            while self.ask(ApiKey.FIND_COORDINATOR, 4, request).coordinators[0].error_code:
                time.sleep(0.1)
        group = wire.OffsetFetchRequest(
            groups=(wire.OffsetFetchRequest.OffsetFetchRequestGroup("g", topics=None),)
        )
        while self.ask(ApiKey.OFFSET_FETCH, 8, group).groups[0].error_code:
            time.sleep(0.1)
        transaction = wire.InitProducerIdRequest("g", 60_000)
        again = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
        while self.ask(ApiKey.INIT_PRODUCER_ID, 4, transaction).error_code in again:
            time.sleep(0.1)


def _comparable(number: int, only: tuple[str, ...]) -> Case | None:
    case = make(number, only)
    if not case.is_well_formed or case.key in LEFT_OUT:
        return None
    request = case.request
    if case.key is ApiKey.DELETE_TOPICS and any(repr(name) in repr(request) for name in KEPT):
        return None
    if case.key is ApiKey.PRODUCE:
        return None if request.acks == 0 else case
    if hasattr(request, "timeout_ms"):
        case = case._replace(request=request._replace(timeout_ms=TIMEOUT_MS))
    return case


def compare(
    seed: int, seconds: float, only: tuple[str, ...]
) -> tuple[Counter[str], dict[str, list[Difference]]]:
    """How often each API was asked, and where the answers differ."""
    asked: Counter[str] = Counter()
    found: dict[str, list[Difference]] = {}
    with (
        tempfile.TemporaryDirectory() as directory,
        running("kafka", Path(directory, "kafka"), SETTINGS) as kafka_address,
        running("logstore", Path(directory, "logstore"), SETTINGS) as our_address,
    ):
        kafka, ours = Asking(kafka_address), Asking(our_address)
        kafka.prepare()
        ours.prepare()
        end = time.monotonic() + seconds
        for number in itertools.count(seed * 1_000_000):
            if time.monotonic() > end:
                break
            case = _comparable(number, only)
            if case is None:
                continue
            asked[case.key.name] += 1
            theirs, mine = (
                codes(each.ask(case.key, case.version, case.request)) for each in (kafka, ours)
            )
            if theirs != mine:
                found.setdefault(case.key.name, []).append(Difference(number, case, theirs, mine))
        kafka.close()
        ours.close()
    return asked, found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.beside_kafka")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="names of APIs, separated by commas")
    arguments = parser.parse_args()
    only = tuple(filter(None, arguments.only.split(",")))
    asked, found = compare(arguments.seed, arguments.seconds, only)
    for name, differences in sorted(found.items()):
        print(f"\n{name}: {len(differences)} of {asked[name]}")
        differences.sort(key=lambda each: len(repr(each.case.request)))
        for each in differences[:SHOWN]:
            print(f"  case {each.number}, v{each.case.version}: {repr(each.case.request)[:600]}")
            print(f"    Kafka {repr(each.kafka)[:400]}\n    ours  {repr(each.ours)[:400]}")
    total = sum(map(len, found.values()))
    print(f"\n{asked.total()} requests, {total} answered differently")
    return 0


if __name__ == "__main__":
    sys.exit(main())
