"""A source that lies, falls silent, cuts what it says, or is not the source at all.

Whatever it does: the mirror holds a run of what the source honestly has, byte for byte; other
partitions go on; once the source is honest again the mirror is whole, and nothing is wrong with its
files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from tests.support.builders import batch
from tests.support.mirrored import (
    check_holds,
    check_verifies,
    grow,
    log_of,
    mirroring,
    one_partition,
    reported,
    until_equal,
)
from tests.support.scripted_source import (
    KAFKA_2_1,
    KAFKA_2_8,
    KAFKA_4,
    Exchange,
    Lie,
    ScriptedSource,
    Versions,
    each_rewritten,
    header_of,
    last_moved,
    on_answers,
    on_parts,
    on_records,
    rewritten,
    split,
    with_code,
)
from tests.support.until import until

ORDERS, OTHERS = TopicPartition("orders", 0), TopicPartition("others", 0)
MAX = 2**63 - 1
TOLD = 3  # times each lie is told before it ends


class Told:
    """Counts how often a lie changes what is sent."""

    def __init__(self, lie: Lie) -> None:
        self.lie, self.times = lie, 0

    def __call__(self, exchange: Exchange) -> None:
        before = replace(exchange)
        self.lie(exchange)
        self.times += exchange != before


class Case(NamedTuple):
    """``reported``: the report has to say something about it."""

    name: str
    lie: Callable[[], Lie]
    reported: bool = True

    def __str__(self) -> str:
        return self.name


def of_orders(how: Callable[[Any], Any]) -> Lie:
    return on_parts(how, "orders")


def records(name: str, how: Callable[[bytes], bytes], *, is_reported: bool = True) -> Case:
    return Case(name, lambda: on_records(how, "orders"), is_reported)


def each_header(**fields: int) -> Callable[[bytes], bytes]:
    return lambda data: each_rewritten(data, **fields)


def first_moved(by: int) -> Callable[[bytes], bytes]:
    return lambda data: rewritten(data, base=header_of(data).base + by)


def with_last_moved(by: int) -> Callable[[bytes], bytes]:
    return lambda data: last_moved(data, by)


def with_foreign_batch(data: bytes) -> bytes:
    """More than the source has committed."""
    last = header_of(split(data)[-1])
    return data + batch(last.last + 1, 3, epoch=last.epoch, value=b"never written")


FIELDS = [
    Case("a high watermark below 0", lambda: of_orders(lambda p: p._replace(high_watermark=-1))),
    Case(
        "the least high watermark", lambda: of_orders(lambda p: p._replace(high_watermark=-(2**63)))
    ),
    Case(
        "a high watermark of 0",
        lambda: of_orders(lambda p: p._replace(high_watermark=0, last_stable_offset=0)),
        False,
    ),
    Case(
        "a high watermark above all",
        lambda: of_orders(lambda p: p._replace(high_watermark=MAX)),
        False,
    ),
    Case(
        "a log start above the high watermark",
        lambda: of_orders(lambda p: p._replace(log_start_offset=p.high_watermark + 1)),
    ),
    Case("the last log start", lambda: of_orders(lambda p: p._replace(log_start_offset=MAX))),
    Case(
        "a log start below 0", lambda: of_orders(lambda p: p._replace(log_start_offset=-7)), False
    ),
    Case(
        "diverging epochs that are none",
        lambda: of_orders(
            lambda p: p._replace(
                records=b"", diverging_epoch=wire.FetchResponse.EpochEndOffset(-1, 0)
            )
        ),
    ),
    Case(
        "diverging at the last offset",
        lambda: of_orders(
            lambda p: p._replace(
                records=b"", diverging_epoch=wire.FetchResponse.EpochEndOffset(2**31 - 1, MAX)
            )
        ),
        False,
    ),
    Case("no records", lambda: of_orders(lambda p: p._replace(records=b"")), False),
    Case("records of null", lambda: of_orders(lambda p: p._replace(records=None)), False),
]

RECORDS = [
    records("a batch that begins below", first_moved(-1)),
    records("a batch that begins far below", first_moved(-8)),
    records("a batch below 0", first_moved(-(2**40))),
    records("batches that overlap", with_last_moved(-1)),
    records("batches that go backwards", with_last_moved(-30)),
    records("a batch above the high watermark", with_last_moved(1)),
    records("a batch at the last offset", each_header(base=MAX - 1)),
    records("a batch over the last offset", each_header(base=MAX)),
    records("more than is committed", with_foreign_batch, is_reported=False),
    records("a last offset below the first", each_header(delta=-1)),
    records("the greatest last offset", each_header(delta=2**31 - 1)),
    records("a wrong checksum", each_header(crc=1)),
    records("a flipped bit", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    records("an epoch above the leader's", each_header(epoch=99)),
    records("an epoch that falls", each_header(epoch=0)),
    records("no epoch", each_header(epoch=-1)),
    records("a format to come", each_header(magic=3)),
    records("a length below the header", each_header(length=10)),
    records("a length below 0", each_header(length=-5)),
    records("a length beyond all", each_header(length=2**31 - 1)),
    records("half a batch", lambda data: data[: len(data) // 4]),
    records("a few bytes", lambda data: data[:7]),
    records("zeros", lambda data: bytes(len(data))),
    records("noise", lambda data: bytes((at * 7 + 13) % 256 for at in range(len(data)))),
    records("the same twice", lambda data: data + data),
]


def _answers(code: ErrorCode) -> Case:
    return Case(f"error {code.name}", lambda: of_orders(with_code(code)), False)


CODES = [
    _answers(code)
    for code in ErrorCode
    if code is not ErrorCode.NONE and code is not ErrorCode.OFFSET_OUT_OF_RANGE
] + [Case("an error that nobody knows", lambda: of_orders(with_code(999)), False)]  # type: ignore[arg-type]


def whole(key: ApiKey, **fields: Any) -> Callable[[], Lie]:
    def how(exchange: Exchange) -> None:
        exchange.answer = exchange.answer._replace(**fields)

    return lambda: on_answers(key, how)


def set_fields(key: ApiKey, **fields: Any) -> Callable[[], Lie]:
    def how(exchange: Exchange) -> None:
        for name, value in fields.items():
            setattr(exchange, name, value)

    return lambda: on_answers(key, how)


ANSWERS = [
    Case("a fetch refused as a whole", whole(ApiKey.FETCH, error_code=2), False),
    Case("a session that is lost each time", whole(ApiKey.FETCH, error_code=70), False),
    Case("another session each time", whole(ApiKey.FETCH, session_id=424242), False),
    Case("a session below 0", whole(ApiKey.FETCH, session_id=-5), False),
    Case("answers without partitions", whole(ApiKey.FETCH, responses=()), False),
    Case("a frame without an answer", set_fields(ApiKey.FETCH, frame=b""), False),
    Case("a frame of noise", set_fields(ApiKey.FETCH, frame=b"\1\2\3" * 40), False),
    Case("a frame of 2 GiB", set_fields(ApiKey.FETCH, raw=struct.pack(">i", 2**31 - 1)), False),
    Case("a frame below 0", set_fields(ApiKey.FETCH, raw=struct.pack(">i", -1)), False),
    Case("HTTP", set_fields(ApiKey.FETCH, raw=b"HTTP/1.1 400 Bad Request\r\n\r\n"), False),
    Case("a cut at once", set_fields(ApiKey.FETCH, cut_at=0), False),
    Case("a cut in the length", set_fields(ApiKey.FETCH, cut_at=3), False),
    Case("a cut in a header", set_fields(ApiKey.FETCH, cut_at=90), False),
    Case("a cut in a batch", set_fields(ApiKey.FETCH, cut_at=200), False),
    Case("metadata of noise", set_fields(ApiKey.METADATA, frame=b"\7" * 50), False),
    Case("metadata cut", set_fields(ApiKey.METADATA, cut_at=30), False),
    Case("metadata without brokers", whole(ApiKey.METADATA, brokers=()), False),
]


def parts_swapped(exchange: Exchange) -> None:
    """Each topic's records under the other's name."""
    if exchange.key is not ApiKey.FETCH:
        return
    topics = exchange.answer.responses
    if len(topics) == 2:
        first, second = topics
        exchange.answer = exchange.answer._replace(
            responses=(
                first._replace(partitions=second.partitions),
                second._replace(partitions=first.partitions),
            )
        )


def _source(*lies: Lie, versions: Versions = KAFKA_4) -> ScriptedSource:
    topics = {
        "orders": one_partition(log_of((3, 0), (3, 1), word="o")),
        "others": one_partition(log_of((3, 0), (3, 1), word="x")),
    }
    return ScriptedSource(topics, lies=lies, versions=versions)


def _run(case: Case, directory: Path, *, others_go_on: bool, versions: Versions = KAFKA_4) -> None:
    with _source(versions=versions) as source, mirroring(source, directory):
        until_equal(source, directory)
        told = Told(case.lie())

        def lie() -> None:
            source.lies.append(told)
            for each in (source.log("orders"), source.log("others")):
                grow(each, 3)

        source.change(lie)
        for times in range(TOLD):
            until(lambda times=times: told.times > times, f"{case.name} is told")  # type: ignore[misc]
            source.change(lambda: grow(source.log("orders")))
        if others_go_on:
            until_equal(source, directory, OTHERS)
        if case.reported:
            until(lambda: reported(directory, ORDERS), f"{case.name} is reported")
        check_holds(directory, source.logs())

        def end() -> None:
            source.lies.clear()
            grow(source.log("orders"))

        source.change(end)
        until_equal(source, directory)
    check_holds(directory, source.logs())
    check_verifies(directory)


@pytest.mark.parametrize("case", FIELDS + RECORDS, ids=str)
def test_what_a_partition_is_told(case: Case, tmp_path: Path) -> None:
    _run(case, tmp_path, others_go_on=True)


@pytest.mark.parametrize("case", RECORDS[:6], ids=str)
@pytest.mark.parametrize("versions", [KAFKA_2_1, KAFKA_2_8], ids=["2.1", "2.8"])
def test_what_an_old_source_tells(case: Case, versions: Versions, tmp_path: Path) -> None:
    _run(case, tmp_path, others_go_on=True, versions=versions)


@pytest.mark.parametrize("case", CODES, ids=str)
def test_each_error(case: Case, tmp_path: Path) -> None:
    _run(case, tmp_path, others_go_on=True)


@pytest.mark.parametrize("case", ANSWERS, ids=str)
def test_what_is_no_answer(case: Case, tmp_path: Path) -> None:
    _run(case, tmp_path, others_go_on=False)
