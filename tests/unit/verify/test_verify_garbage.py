"""Any bytes in any file give findings, never an exception, and never a long wait (I-17, I-18)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verify_logs import LOG_DIR, PARTITION, check, log_dir, patch, state_of

from logstore.storage.memory import MemoryStorage
from logstore.verify import verify

pytestmark = pytest.mark.slow

FILES = (
    "00000000000000000000.log",
    "00000000000000000000.index",
    "00000000000000000000.timeindex",
    "00000000000000000000.txnindex",
    "00000000000000000005.snapshot",
    "00000000000000000005.log",
    "leader-epoch-checkpoint",
    "partition.metadata",
)
DIR_FILES = (
    "meta.properties",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    ".kafka_cleanshutdown",
)
GOLD = bytes.fromhex(  # F-76: a whole batch, to be mutated
    "00000000000000640000004f0000000502ba9b343d0000000000010000018bcfe568000000018bcfe568050000000000"
    "000fa00003000000070000000222000000046b310476310402680278026e0116000a02010a68656c6c6f00"
)
SOME = settings(max_examples=60)


@st.composite
def content(draw: st.DrawFn) -> bytes:
    """Noise, zeros, batches with a few bytes changed, and mixtures of them."""
    piece = st.one_of(
        st.binary(max_size=200),
        st.integers(0, 300).map(bytes),
        st.just(GOLD),
        st.tuples(st.integers(0, len(GOLD) - 1), st.integers(0, 255)).map(
            lambda change: GOLD[: change[0]] + bytes([change[1]]) + GOLD[change[0] + 1 :]
        ),
    )
    return b"".join(draw(st.lists(piece, max_size=5)))


@SOME
@given(files=st.dictionaries(st.sampled_from(FILES), content(), min_size=1))
def test_a_partition_of_garbage(files: dict[str, bytes]) -> None:
    storage = MemoryStorage()
    storage.make_dir(PARTITION)
    for name, data in files.items():
        storage.write_file(f"{PARTITION}/{name}", data)
    before = state_of(storage)
    report = check(storage)
    assert report.to_dict()["partitions"]
    assert report.unusable == []
    assert state_of(storage) == before
    for name in files:
        verify([f"{PARTITION}/{name}"], storage=storage)


@SOME
@given(files=st.dictionaries(st.sampled_from(DIR_FILES), content(), min_size=1))
def test_a_log_directory_of_garbage(files: dict[str, bytes]) -> None:
    storage = MemoryStorage()
    storage.make_dir(PARTITION)
    for name, data in files.items():
        storage.write_file(f"{LOG_DIR}/{name}", data)
    assert check(storage).unusable == []


@SOME
@given(data=st.data())
def test_a_log_with_overwritten_bytes(data: st.DataObject) -> None:
    storage = log_dir(transactions=True, batches=20)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(sorted(state_of(storage))))
        size = len(storage.read_file(path))
        patch(storage, path, data.draw(st.integers(0, size)), data.draw(content()))
    assert check(storage).unusable == []
