"""Which fetches are answered out of a segment's file, and how far."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logstore.format.reader import read_records
from logstore.log.reading.fetching import SLICE_MIN
from logstore.segments.producer_state import AppendOrigin
from logstore.storage import FileSlice
from logstore.storage.file_slice import live_slices
from logstore.storage.local import LocalStorage
from replication.common.error_codes import ErrorCode
from tests.support.builders import batch, marker, produced
from tests.support.replica_managers import BROKER, Host, part

VALUE = bytes(2000)


@pytest.fixture
def host(tmp_path: Path) -> Any:
    host = Host(storage=LocalStorage(), directories=(str(tmp_path),))  # type: ignore[arg-type]
    yield host
    host.manager.shutdown()
    host.log_manager.close()
    assert not live_slices()


def fill(host: Host, count: int = 20) -> None:
    for _ in range(count):
        host.produce(batch(value=VALUE), acks=1)


def test_who_fetches_over_the_network_gets_slices_and_nobody_else(host: Host) -> None:
    host.lead()
    fill(host)
    host.replicate(20)
    held = host.fetch(part(0), takes_slices=True).only.records
    assert isinstance(held, FileSlice)
    data = held.read()
    held.release()
    for answer in (host.fetch(part(0)), host.fetch(part(0), replica=2)):
        assert answer.only.records == answer.only.batches == data


def test_a_follower_over_the_network_gets_slices_of_what_is_committed(host: Host) -> None:
    """What may still be cut off comes out of memory."""
    host.lead()
    fill(host)
    host.replicate(13)
    held = host.fetch(part(0), replica=2, takes_slices=True).only.records
    assert isinstance(held, FileSlice)
    assert [r.offset for r in read_records(held.read())] == list(range(13))
    held.release()
    rest = host.fetch(part(13), replica=2, takes_slices=True).only.batches
    assert [r.offset for r in read_records(rest)] == list(range(13, 20))


def test_a_slice_ends_at_the_high_watermark(host: Host) -> None:
    host.lead()
    fill(host)
    host.replicate(13)
    held = host.fetch(part(0), takes_slices=True).only.records
    assert [r.offset for r in read_records(held.read())] == list(range(13))
    held.release()


def test_a_slice_for_read_committed_ends_at_the_last_stable_offset(host: Host) -> None:
    """And the aborted transactions are those of its range."""
    host.lead(replicas=(BROKER,))
    for sequence in range(10):
        host.produce(produced(5, sequence, transactional=True, value=VALUE), acks=1)
    abort = marker(commit=False, producer_id=5)
    host.produce(abort, acks=1, origin=AppendOrigin.COORDINATOR)
    host.produce(produced(6, transactional=True, value=VALUE), acks=1)
    fill(host)
    answer = host.fetch(part(0), committed=True, takes_slices=True).only
    assert [r.offset for r in read_records(answer.records.read())] == list(range(10))
    assert [(t.producer_id, t.first_offset) for t in answer.aborted_transactions] == [(5, 0)]
    answer.records.release()


def test_few_bytes_at_the_end_come_out_of_memory(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was just appended; but never a part of what is there in place of a slice."""
    host.lead(replicas=(BROKER,))
    fill(host)
    log = host.partition().local_log()

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("the file was read")

    with monkeypatch.context() as patch:
        patch.setattr(log.reader, "read", refuse)
        assert len(host.fetch(part(15), takes_slices=True).only.records) < SLICE_MIN
    held = host.fetch(part(0), takes_slices=True).only.records
    assert [r.offset for r in read_records(held.read())] == list(range(20))
    held.release()


def test_limits_hold_for_slices_too(host: Host) -> None:
    """The second partition gets what the first left over."""
    host.lead(replicas=(BROKER,))
    fill(host)
    (response,) = host.fetch(part(0), part(0), takes_slices=True, max_bytes=30_000)
    first, second = (p.records for p in response.partitions)
    assert len(first) == 30_000
    assert len(second) == 0
    first.release()


def test_a_wait_ends_with_a_slice(host: Host) -> None:
    host.lead(replicas=(BROKER,))
    fill(host, 1)
    answer = host.fetch(part(0), takes_slices=True, wait_ms=500, min_bytes=30_000)
    assert not answer
    fill(host, 20)
    held = answer.only.records
    assert isinstance(held, FileSlice)
    assert len(held) > 30_000
    held.release()


def test_an_answer_that_nobody_takes_releases_its_slices(host: Host) -> None:
    """The partition was fenced after the read, or the connection is gone."""
    host.lead(replicas=(BROKER,))
    fill(host)
    log = host.partition().local_log()
    true = log.reader.read

    def fenced(*args: Any, **options: Any) -> Any:
        found = true(*args, **options)
        host.follow(epoch=1, replicas=(BROKER, 2))
        return found

    log.reader.read = fenced  # type: ignore[method-assign]
    answer = host.fetch(part(0), takes_slices=True).only
    assert answer.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not live_slices()
