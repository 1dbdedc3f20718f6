"""Where a log or an index is cut into windows, blocks and pieces does not show in what is found."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verify_logs import CODECS, PARTITION, log_dir, names, patch

from logstore.format import filenames
from logstore.format.index_entry import OFFSET_ENTRY, TIME_ENTRY
from logstore.storage.base import Storage
from logstore.storage.local import LocalStorage
from logstore.storage.memory import MemoryStorage
from logstore.verify.common.report import Problem, Severity
from logstore.verify.common.text_files import check_clean_marker
from logstore.verify.segment import index_entries as entries
from logstore.verify.segment import scan
from logstore.verify.segment.index_entries import IndexEntries, IndexEntry
from logstore.verify.segment.scan import SegmentJob, SegmentResult, VerifyOptions, verify_segment
from tests.support.cases import for_each

GOLDEN = Path(__file__).parents[2] / "golden" / "data"
SEEDS = st.integers(0, 2**32)


# ---- entries of an index ----


def an_index(rng: random.Random, layout: struct.Struct) -> bytes:
    """Ascending entries, of which few or none are wrong in either number."""
    fault = rng.choice([0.0, 0.05, 0.4])
    offset, key, found = 0, 0, []
    for _ in range(rng.randint(0, 12)):
        offset, key = offset + rng.randint(1, 9), key + rng.randint(1, 90)
        wrong = rng.random() < fault
        shown = (offset + rng.choice([0, -40, 40]), key + rng.choice([0, -400, 400]))
        one, two = shown if wrong else (offset, key)
        found.append(layout.pack(*((one, two) if layout is OFFSET_ENTRY else (two, one))))
    return b"".join(found)


def read(
    data: bytes, layout: struct.Struct, step: random.Random
) -> tuple[list[IndexEntry], list[Problem]]:
    """What the entries of an index are, taken singly or several at hand at once."""
    storage, problems = MemoryStorage(), list[Problem]()
    storage.make_dir("/d")
    file = storage.open("/d/index", create=True)
    file.write_at(0, data)
    index = IndexEntries(file, layout, len(data), 1000, problems, 500)
    found: list[IndexEntry] = []
    while (entry := index.peek()) is not None:
        if index.first < index.end and step.random() < 0.7:
            stop = step.randint(index.first + 1, index.end)
            found += [index.entry(number) for number in range(index.first, stop)]
            index.first = stop
        else:
            found.append(entry)
            index.advance()
    return found, problems


@given(seed=SEEDS, piece=st.integers(3, 8), layout=st.sampled_from([OFFSET_ENTRY, TIME_ENTRY]))
def test_pieces_of_an_index_give_what_single_entries_give(
    seed: int, piece: int, layout: struct.Struct
) -> None:
    """F-113, F-114, F-118: the same entries, and the same blame."""
    data = an_index(random.Random(seed), layout)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(entries, "_PIECE_ENTRIES", piece)
        found = read(data, layout, random.Random(seed))
        patched.setattr(entries, "ascending_offset_entries", lambda data, size: 0)
        patched.setattr(entries, "ascending_time_entries", lambda data: 0)
        assert read(data, layout, random.Random(seed)) == found
    if not found[1]:
        assert len(found[0]) == len(data) // layout.size


def test_the_rest_of_an_index_is_read_for_its_order() -> None:
    storage, problems = MemoryStorage(), list[Problem]()
    storage.make_dir("/d")
    file = storage.open("/d/index", create=True)
    good = b"".join(OFFSET_ENTRY.pack(n, 10 * n) for n in range(1, 30))
    file.write_at(0, good + OFFSET_ENTRY.pack(5, 5) + OFFSET_ENTRY.pack(31, 310))
    index = IndexEntries(file, OFFSET_ENTRY, file.size(), 0, problems, 1000)
    index.drain()
    assert index.peek() is None
    assert [(p.rule, p.position) for p in problems] == [("index-order", len(good))]


def test_an_index_that_is_cut_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_PIECE_ENTRIES", 4)
    storage, problems = MemoryStorage(), list[Problem]()
    storage.make_dir("/d")
    file = storage.open("/d/index", create=True)
    file.write_at(0, b"".join(TIME_ENTRY.pack(n, n) for n in range(20)))
    index = IndexEntries(file, TIME_ENTRY, 240, 0, problems)
    assert index.peek() == IndexEntry(0, 0, 0)
    file.truncate(5 * 12)
    found = []
    while (entry := index.peek()) is not None:
        found.append(entry.offset)
        index.advance()
    assert found == [0, 1, 2, 3, 4]
    assert problems == []


# ---- segments ----


def checked(
    storage: Storage, directory: str, snapshots: bool, options: VerifyOptions
) -> list[SegmentResult]:
    found: dict[int, set[str]] = {}
    for file in storage.scan_dir(directory):
        parsed = filenames.parse_segment_file(file.name)
        if parsed is not None and file.size:
            found.setdefault(parsed.offset, set()).add(parsed.suffix)
    bases = sorted(base for base, suffixes in found.items() if ".log" in suffixes)
    return [
        verify_segment(
            storage,
            SegmentJob(
                directory,
                base,
                following,
                frozenset(found[base]),
                tuple(range(base, base + 200, 3)) if snapshots else (),
                epoch_starts=(base + 2, base + 7),
                compare=scan.CompareSpec(0, 2**40, 10),
            ),
            options,
        )
        for base, following in zip(bases, [*bases[1:], -1], strict=True)
    ]


def same_in_small_pieces(storage: Storage, directory: str, snapshots: bool = False) -> int:
    """How many problems there are, whichever way the segments are cut."""
    options = VerifyOptions()
    whole = checked(storage, directory, snapshots, options)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scan, "WINDOW", 1500)
        patched.setattr(scan, "_BLOCK", 400)
        patched.setattr(entries, "_PIECE_ENTRIES", 3)
        assert checked(storage, directory, snapshots, options) == whole
    told = (p for result in whole for problems in result.problems.values() for p in problems)
    return sum(problem.severity is not Severity.INFO for problem in told)


@for_each("seed", range(4))
@for_each("transactions", [False, True])
def test_logs_of_our_own(seed: int, transactions: bool) -> None:
    """Producers and marks for snapshots too: between them only some batches are looked at."""
    storage = log_dir(transactions=transactions, seed=seed, batches=120, codecs=CODECS)
    assert same_in_small_pieces(storage, PARTITION, snapshots=True) == 0


@for_each("folder", sorted(GOLDEN.glob("v[012]-*")), name=lambda path: path.name)
def test_logs_of_kafka(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "topic-0"
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.json", "*.jsonl"))
    assert same_in_small_pieces(LocalStorage(), str(target)) == 0


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_faults_of_an_index(suffix: str) -> None:
    """A bit flipped in each of its bytes."""
    storage = log_dir(batches=30)
    path = names(storage, suffix)[0]
    data = storage.read_file(path, 1 << 20)
    found = 0
    for position in range(min(len(data), 24)):
        patch(storage, path, position, bytes([data[position] ^ 1 << position % 8]))
        found += same_in_small_pieces(storage, PARTITION) > 0
        patch(storage, path, position, data[position : position + 1])
    assert found > 20


@pytest.mark.parametrize(
    ("marker", "problems"),
    [
        (b'{"version":0,"brokerEpoch":25}', 0),
        (b'{"version":0,"brokerEpoch":-1}', 0),
        (b'{"version":0,"brokerEpoch":25,"earlierEpochs":[4,17]}', 0),
        (b'{"version":0,"brokerEpoch":25,"earlierEpochs":[40]}', 1),
        (b'{"version":0,"brokerEpoch":25,"more":1}', 1),
        (b"[0,0]", 1),
    ],
)
def test_what_a_marker_of_a_clean_stop_may_say(marker: bytes, problems: int) -> None:
    assert len(list(check_clean_marker(marker))) == problems
