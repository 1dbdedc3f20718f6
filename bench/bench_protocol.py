"""Messages of the wire protocol, read and written, beside kio, whose reader is native (Rust)."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from workloads import in_turns, scaled, seconds

from replication.protocol import compiler, schema
from replication.protocol import messages as wire
from replication.protocol.codecs import decoder, encoder
from replication.protocol.compiler import compile_decoder, compile_encoder
from replication.protocol.structures import make_structures

ROUNDS = 5
CALLS = scaled(5_000)
RECORDS = bytes(1024)


def _produce() -> Any:
    message = wire.ProduceRequest
    part = message.PartitionProduceData(0, RECORDS)
    topic = message.TopicProduceData("topic-a", partition_data=(part,))
    return message(acks=-1, timeout_ms=30_000, topic_data=(topic,))


def _fetch() -> Any:
    message = wire.FetchRequest
    parts = tuple(message.FetchPartition(i, 0, 100 + i, -1, -1, 1 << 20) for i in range(10))
    return message(
        max_wait_ms=500, min_bytes=1, topics=(message.FetchTopic("topic-a", partitions=parts),)
    )


def _fetched() -> Any:
    message = wire.FetchResponse
    parts = tuple(
        message.PartitionData(i, 0, 1000, 1000, 0, aborted_transactions=None, records=RECORDS)
        for i in range(10)
    )
    return message(responses=(message.FetchableTopicResponse("topic-a", partitions=parts),))


MESSAGES = {
    "Produce 9 request, one partition": ("produce", "ProduceRequest", 9, _produce()),
    "Fetch 12 request, ten partitions": ("fetch", "FetchRequest", 12, _fetch()),
    "Fetch 12 response, ten partitions": ("fetch", "FetchResponse", 12, _fetched()),
}


def _calls(run: Callable[[], object]) -> None:
    for _ in range(CALLS):
        run()


@pytest.mark.parametrize("what", MESSAGES)
@pytest.mark.parametrize("way", ["read", "written"])
def test_a_message(benchmark: Any, claim: Any, what: str, way: str) -> None:
    kio = import_module("kio.serial")
    package, name, version, message = MESSAGES[what]
    kind = "request" if name.endswith("Request") else "response"
    module = import_module(f"kio.schema.{package}.v{version}.{kind}")
    body = b"".join(encoder(name, version)(message))
    read, write = kio.entity_reader(getattr(module, name)), kio.entity_writer(getattr(module, name))
    theirs, _ = read(body, 0)
    view, decode, encode = memoryview(body), decoder(name, version), encoder(name, version)

    def write_theirs() -> bytes:
        stream = io.BytesIO()
        write(stream, theirs)
        return stream.getvalue()

    assert write_theirs() == body
    ours, kios = {
        "read": (lambda: decode(view, 0), lambda: read(body, 0)),
        "written": (lambda: encode(message), write_theirs),
    }[way]
    took = in_turns(
        benchmark,
        lambda: _calls(ours),
        rounds=ROUNDS,
        kio=lambda: seconds(lambda: _calls(kios)),
    )
    claim(
        f"{what}, {way}",
        [each / CALLS * 1e6 for each in took["ours"]],
        "µs",
        peer="kio, native" if way == "read" else "kio",
        theirs=[each / CALLS * 1e6 for each in took["kio"]],
        goal=0.25 if way == "read" else 4,
        less=True,
    )


def _every_codec() -> Iterator[Callable[[], object]]:
    for name in schema.MESSAGE_NAMES:
        message = schema.message(name)
        structures = make_structures(message, __name__)
        for version in message.versions.each():
            yield lambda m=message, v=version, s=structures: compile_decoder(m, v, s)
            yield lambda m=message, v=version, s=structures: compile_encoder(m, v, s)


def test_compiling_every_codec(benchmark: Any, claim: Any) -> None:
    codecs = list(_every_codec())

    def compile_all() -> None:
        for each in codecs:
            each()

    took = in_turns(benchmark, compile_all, setup=compiler._code.cache_clear, rounds=ROUNDS)
    each_ms = [each / len(codecs) * 1e3 for each in took["ours"]]
    claim(
        "a codec compiled, mean of all", each_ms, "ms", limit=0.4, less=True, note=f"{len(codecs)}"
    )


def test_the_table_at_start(benchmark: Any, claim: Any) -> None:
    took = in_turns(benchmark, lambda: dict(schema._heads()), rounds=20)["ours"]
    assert len(dict(schema._heads())) == len(schema.APIS)
    took_ms = [each * 1e3 for each in took]
    claim("the schema table read at start", took_ms, "ms", limit=5, less=True)
