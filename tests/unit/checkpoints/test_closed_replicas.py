"""The file that names the replicas over which a clean stop was written."""

from __future__ import annotations

import uuid
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import (
    ClosedReplica,
    ClosedReplicas,
    ClosedReplicasFile,
    MalformedCheckpointError,
    TopicPartition,
)
from logstore.storage.memory import MemoryStorage
from tests.support.cases import for_each

ID = uuid.UUID(int=1 << 100)
TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
CLOSED = ClosedReplicas((4, 17), {TP: ClosedReplica(ID, 1200, 7)}, frozenset({OTHER}))

partitions = st.builds(TopicPartition, st.sampled_from(["t", "a.b", "x_y"]), st.integers(0, 9))
logs = st.builds(
    ClosedReplica,
    st.none() | st.just(ID),
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
)


def file() -> ClosedReplicasFile:
    return ClosedReplicasFile("/closed", MemoryStorage())


def content(body: bytes) -> bytes:
    return b"0\n%08x\n%s" % (zlib.crc32(body), body)


@given(
    st.sets(st.integers(0, 2**63 - 1), min_size=1, max_size=3),
    st.dictionaries(partitions, logs, max_size=4),
    st.frozensets(partitions, max_size=3),
)
def test_what_is_written_is_read(
    epochs: set[int],
    found: dict[TopicPartition, ClosedReplica],
    unproven: frozenset[TopicPartition],
) -> None:
    logs = {tp: log for tp, log in found.items() if tp not in unproven}
    closed = ClosedReplicas(tuple(sorted(epochs)), logs, unproven)
    stored = file()
    stored.write(closed)
    assert stored.read() == closed


def test_the_text() -> None:
    storage = MemoryStorage()
    ClosedReplicasFile("/closed", storage).write(CLOSED)
    body = b"4 17\norders 0 AAAAEAAAAAAAAAAAAAAAAA 1200 7\norders 1 - ? -\n"
    assert storage.read_file("/closed") == content(body)


def test_a_missing_file() -> None:
    assert file().read() is None


def test_no_flipped_bit_is_believed() -> None:
    storage = MemoryStorage()
    stored = ClosedReplicasFile("/closed", storage)
    stored.write(CLOSED)
    data = storage.read_file("/closed")
    for position in range(len(data)):
        for damaged in (
            data[:position],
            data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :],
        ):
            storage.write_file("/closed", damaged)
            with pytest.raises(MalformedCheckpointError):
                stored.read()


@for_each(
    "data",
    [
        b"",
        b"1\n" + content(b"4\n")[2:],
        content(b""),
        content(b"4"),
        content(b"\n"),
        content(b"4 4\n"),
        content(b"4 x\n"),
        content(b"-1\n"),
        content(b"4\norders 0 - 1\n"),
        content(b"4\norders 0 x 1 -\n"),
        content(b"4\norders -1 - 1 -\n"),
        content(b"4\norders 0 - -1 -\n"),
        content(b"4\norders 0 - 1 x\n"),
        content(b"4\n 0 - 1 -\n"),
        content(b"4\n\xff 0 - 1 -\n"),
        content(b"4\norders 0 - 1 -\norders 0 - ? -\n"),
    ],
)
def test_what_is_not_such_a_file(data: bytes) -> None:
    storage = MemoryStorage()
    storage.write_file("/closed", data)
    with pytest.raises(MalformedCheckpointError, match="/closed"):
        ClosedReplicasFile("/closed", storage).read()
