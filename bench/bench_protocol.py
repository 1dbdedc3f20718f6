"""Messages of the wire protocol, read and written, beside kio, whose reader is native (Rust)."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from workloads import in_turns

from replication.protocol import compiler, schema
from replication.protocol import messages as wire
from replication.protocol.codecs import decoder, encoder
from replication.protocol.compiler import compile_decoder, compile_encoder
from replication.protocol.structures import make_structures

ROUNDS = 9
CALLS = 5_000
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


def _timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        run()
    return (time.perf_counter() - started) / CALLS


@pytest.mark.parametrize("what", MESSAGES)
@pytest.mark.parametrize("way", ["read", "written"])
def test_a_message(benchmark: Any, claim: Any, what: str, way: str) -> None:
    kio = pytest.importorskip("kio.serial", reason="kio is the peer")
    package, name, version, message = MESSAGES[what]
    kind = "request" if name.endswith("Request") else "response"
    module = pytest.importorskip(f"kio.schema.{package}.v{version}.{kind}")
    body = b"".join(encoder(name, version)(message))
    read, write = kio.entity_reader(getattr(module, name)), kio.entity_writer(getattr(module, name))
    theirs, _ = read(body, 0)
    view, decode, encode = memoryview(body), decoder(name, version), encoder(name, version)

    def write_theirs() -> bytes:
        stream = io.BytesIO()
        write(stream, theirs)
        return stream.getvalue()

    assert write_theirs() == body
    runs: dict[str, Callable[[], object]] = {
        "read": {"ours": lambda: decode(view, 0), "kio": lambda: read(body, 0)},
        "written": {"ours": lambda: encode(message), "kio": write_theirs},
    }[way]
    best = in_turns(
        benchmark, ROUNDS, **{who: lambda run=run: _timed(run) for who, run in runs.items()}
    )
    ratio = best["kio"] / best["ours"]
    goal = 0.25 if way == "read" else 4.0
    claim(
        what=f"{what}, {way}",
        ours=round(best["ours"] * 1e6, 2),
        unit="µs",
        peer=f"kio {best['kio'] * 1e6:.2f} µs",
        ratio=round(ratio, 2),
        goal=f"at least {goal}x",
        met=ratio >= goal,
        note="kio's reader is native code" if way == "read" else "",
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

    def compile_all() -> float:
        compiler._code.cache_clear()
        started = time.perf_counter()
        for each in codecs:
            each()
        return (time.perf_counter() - started) / len(codecs)

    best = in_turns(benchmark, 5, ours=compile_all)
    claim(
        what=f"a codec compiled, mean of all {len(codecs)}",
        ours=round(best["ours"] * 1e3, 3),
        unit="ms",
        goal="at most 0.4 ms",
        met=best["ours"] <= 0.4e-3,
    )


def test_the_table_at_start(benchmark: Any, claim: Any) -> None:
    def read_heads() -> float:
        started = time.perf_counter()
        apis = dict(schema._heads())
        assert len(apis) == len(schema.APIS)
        return time.perf_counter() - started

    best = in_turns(benchmark, 20, ours=read_heads)
    claim(
        what="the schema table read at start",
        ours=round(best["ours"] * 1e3, 3),
        unit="ms",
        goal="at most 5 ms",
        met=best["ours"] <= 5e-3,
    )
