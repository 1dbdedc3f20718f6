"""Hostile requests to a running server: of every API and version served, with any values.

    python -m tests.fuzz.server --seconds 300 --seed 1 [--only CREATE_TOPICS,FETCH]

Three of four requests are well formed, whatever their values: each has exactly one answer, which a
plain decoder of the schema reads. The others are changed as in ``tests.fuzz.protocol``: they are
answered likewise, or the connection is closed. Nothing fails in the server in a way that it does
not foresee, and in the end it still serves. A case depends on its number alone, but for what the
server remembers of earlier ones.
"""

from __future__ import annotations

import argparse
import logging
import random
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from replication.common.limited_log import LimitedLogger
from replication.protocol import (
    FOR_BROKERS,
    SERVED,
    SERVED_TO_BROKERS,
    ApiKey,
    encode_request,
    parse_response_header,
    request_header,
    schema,
)
from replication.protocol import messages as wire
from replication.server.serving import ServedCluster, serve
from tests.fuzz.protocol import changed
from tests.support.builders import batch
from tests.support.protocol_reference import ReferenceDecoder, Refused
from tests.support.protocol_values import any_scalar, draw
from tests.support.served import WITH_BROKERS

TOPICS = ("t", "u")
WAITS = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""What may wait for other members, longer than a case does."""

ANSWER_S = 10.0  # for an answer that is due
WAIT_S = 0.05  # for one that may have to wait
NAMES = ("t", "u", "t", "new", "", ".", "é", "x" * 249, "x" * 250, "__consumer_offsets", "a/b")
NUMBERS = (0, 0, 0, 1, 2, -1, -2, 100)
DURATIONS = (0, 1, 20, -1)


def scalars(rng: random.Random, name: str, kind: str) -> Any:
    """Values that get far into a handler more often than not."""
    if name in ("full", "type"):  # of one who says all: what he does not know ends the broker
        return 0 if kind == "i8" else False
    if rng.random() < 0.15 and name not in _BOUNDED:
        return any_scalar(rng, name, kind)
    if name in ("acks", "replica_id"):
        return -1
    if name == "controller_epoch":
        return 50  # a larger one would have all later ones refused
    if name.endswith("_ms") and kind in ("i32", "i64"):
        return rng.choice(DURATIONS)
    if name == "records":
        good = batch(count=rng.choice((1, 3)))
        return rng.choice((good, good, good + good, good[:40], good[:-1] + b"\0", b""))
    if kind == "str":
        return rng.choice(NAMES if "topic" in name or name == "name" else ("g", "g2", "", "m"))
    if kind in _INTEGERS:
        return rng.choice(NUMBERS)
    return any_scalar(rng, name, kind)


_INTEGERS = frozenset({"i8", "i16", "i32", "i64"})
_BOUNDED = frozenset(
    {
        "max_wait_ms",
        "timeout_ms",
        "rebalance_timeout_ms",
        "acks",
        "replica_id",
        "controller_epoch",
    }
)


class Case(NamedTuple):
    key: ApiKey
    version: int
    body: bytes
    is_well_formed: bool
    request: Any


def make(number: int, only: tuple[str, ...] = ()) -> Case:
    """The request of a case."""
    rng = random.Random(number)
    keys = [key for key in SERVED_TO_BROKERS if key.name in only] or [*SERVED]
    key = rng.choice(keys)
    version = rng.choice(SERVED_TO_BROKERS[key].each())
    name = schema.APIS[key].name + "Request"
    request = draw(name, version, rng, scalars)
    body = encode_request(request, version)
    if rng.random() < 0.75:
        return Case(key, version, body, True, request)
    return Case(key, version, changed(name, version, body, rng), False, request)


class Client:
    """One connection, made again after each close."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._socket: socket.socket | None = None

    def ask(self, case: Case, number: int) -> str:
        """Send it; what is wrong with the answer, or ""."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address)
        header = request_header(case.key, case.version, number & 0x7FFFFFFF, "fuzz")
        frame = header + case.body
        may_wait = case.key in WAITS
        self._socket.settimeout(WAIT_S if may_wait or _is_unanswered(case) else ANSWER_S)
        try:
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
            answer = self._read()
        except TimeoutError:
            self.close()
            return "" if may_wait or _is_unanswered(case) else "no answer"
        except OSError:
            answer = None
        if answer is None:
            self.close()
            return "" if _may_close(case) else "closed"
        return _judged(case, number, answer)

    def _read(self) -> bytes | None:
        head = self._exactly(4)
        return None if head is None else self._exactly(struct.unpack(">i", head)[0])

    def _exactly(self, size: int) -> bytes | None:
        assert self._socket is not None
        data = bytearray()
        while len(data) < size:
            found = self._socket.recv(size - len(data))
            if not found:
                return None
            data += found
        return bytes(data)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _is_unanswered(case: Case) -> bool:
    return not case.is_well_formed or (case.key is ApiKey.PRODUCE and case.request.acks == 0)


def _may_close(case: Case) -> bool:
    return _is_unanswered(case) or case.key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


def _judged(case: Case, number: int, answer: bytes) -> str:
    frame = memoryview(answer)
    correlation_id, at = parse_response_header(frame, case.key, case.version)
    if correlation_id != number & 0x7FFFFFFF:
        return f"answers request {correlation_id}, not {number}"
    name = schema.APIS[case.key].name + "Response"
    try:
        ReferenceDecoder(name, case.version, bytes(frame[at:])).decode()
    except Refused as error:
        return f"an answer that nobody can read: {error}"
    return ""


class Unforeseen(logging.Handler):
    """Keeps what the server logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            error, trace = record.exc_info[1], record.exc_info[2]
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
            text += f": {error!r} at {where}"
        self.found.append(text)


def all_lines() -> AbstractContextManager[object]:
    """Inside the block no line of a log is left out because one like it was said before."""
    return patch.object(LimitedLogger, "_left_out_before", return_value=0)


@contextmanager
def fuzzed() -> Iterator[tuple[ServedCluster, Unforeseen]]:
    """A server with two topics, and what it logs."""
    unforeseen = Unforeseen()
    logging.getLogger("replication").addHandler(unforeseen)
    logging.getLogger("logstore").addHandler(unforeseen)
    try:
        config = {"num.partitions": 2, **WITH_BROKERS["config"]}
        listeners = WITH_BROKERS["listeners"]
        with all_lines(), serve(config=config, listeners=listeners) as kafka:
            for topic in TOPICS:
                kafka.create_topic(topic, 2, 1)
            yield kafka, unforeseen
    finally:
        logging.getLogger("replication").removeHandler(unforeseen)
        logging.getLogger("logstore").removeHandler(unforeseen)


def run(
    kafka: ServedCluster, unforeseen: Unforeseen, numbers: Iterator[int], only: tuple[str, ...] = ()
) -> tuple[Counter[str], list[str]]:
    """Ask all cases; how many of each API, and what was wrong."""
    for_brokers = bool({key.name for key in FOR_BROKERS}.intersection(only))
    place = kafka.broker(kafka.broker_ids[0]).endpoints[for_brokers]
    client = Client((place.host, place.port))
    asked: Counter[str] = Counter()
    wrong: list[str] = []
    for number in numbers:
        case = make(number, only)
        asked[case.key.name] += 1
        found = client.ask(case, number)
        if found or unforeseen.found:
            texts = "; ".join([found, *unforeseen.found])
            wrong.append(f"--one {number}: {case.key.name} v{case.version}: {texts}")
            unforeseen.found.clear()
    client.close()
    last = Case(ApiKey.METADATA, 12, encode_request(wire.MetadataRequest(None), 12), True, None)
    found = client.ask(last, 7)
    if found:
        wrong.append(f"in the end Metadata: {found}")
    client.close()
    return asked, wrong


def _until(first: int, seconds: float) -> Iterator[int]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield first
        first += 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.server")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="names of APIs, separated by commas")
    parser.add_argument("--one", type=int, metavar="CASE", help="one case, on a fresh server")
    arguments = parser.parse_args()
    only = tuple(filter(None, arguments.only.split(",")))
    if arguments.one is not None:
        print(make(arguments.one, only))
        numbers = iter([arguments.one])
    else:
        numbers = _until(arguments.seed * 1_000_000, arguments.seconds)
    with fuzzed() as (kafka, unforeseen):
        asked, wrong = run(kafka, unforeseen, numbers, only)
    shown: set[str] = set()
    for text in wrong:
        case_of, _, rest = text.partition(": ")
        if rest[:200] not in shown:
            shown.add(rest[:200])
            print(f"{case_of}: {rest[:1000]}")
    fewest, count = min(asked.items(), key=lambda each: each[1])
    print(f"{asked.total()} requests, {len(wrong)} went wrong; at least {count} an API ({fewest})")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
