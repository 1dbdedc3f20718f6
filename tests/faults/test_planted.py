"""Random faults of every kind in clean directories: each is found, and nothing else is told.

The seeds are fixed; a failure names kind and seed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from logstore.verify import VerifyOptions, verify
from tests.faults import engine
from tests.faults.indexes import INDEX, TIME, TXN, put, with_entries
from tests.faults.kinds import ALONE, COMPARED, KINDS
from tests.faults.planter import Fault, NotHere, complaints, plant
from tests.faults.site import Site, copied

OF_A_KIND = 4
OF_A_KIND_LONG = 75
BLOCKS = [list(KINDS)[at : at + 10] for at in range(0, len(KINDS), 10)]
ONE_THREAD = VerifyOptions(threads=1)


def test_clean_directories_have_nothing_to_tell(clean: list[str]) -> None:
    """Though replicas differ in segments, indexes and what lies above the high watermark."""
    report = verify(clean, VerifyOptions(fingerprint=True))
    assert report.findings == []
    assert report.clean
    fingerprints = {(part.topic, part.partition, part.fingerprint) for part in report.partitions}
    assert len(fingerprints) > len({where[:2] for where in fingerprints})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 5))
def test_so_are_those_of_other_seeds(seed: int, tmp_path: Path) -> None:
    """Written by the same engine, with other batches, transactions and fetches."""
    report = verify(engine.build(tmp_path, seed=seed))
    assert report.findings == []
    assert report.clean


@pytest.mark.parametrize("everyone", [False, True])
def test_entries_of_an_index_one_batch_early_are_explained(
    everyone: bool, clean: list[str], tmp_path: Path
) -> None:
    """Kafka before 4.1 wrote such entries for an append of two batches: an info, no finding of its
    own (F-132). One entry, or all of an index."""
    paths = copied(clean, str(tmp_path))
    for segment, entries in with_entries(Site(paths), INDEX, 2):
        starts = [batch.position for batch in segment.batches()]
        for number, (offset, position) in list(enumerate(entries))[1 : None if everyone else 2]:
            early = starts[starts.index(position) - 1]
            if early > entries[number - 1][1]:
                put(segment, INDEX, number, offset, early)
    report = verify(paths, ONE_THREAD)
    assert report.clean
    told = [f for f in report.findings if f.rule == "index-skips-batches"]
    assert told == report.findings
    assert len(told) > 10


@pytest.mark.parametrize("suffix", [INDEX, TIME, TXN])
def test_an_index_that_the_next_start_rebuilds_may_be_anything(
    suffix: str, clean: list[str], tmp_path: Path
) -> None:
    """Above the recovery point of the broker that crashed: told, and no alarm."""
    paths = copied(clean, str(tmp_path))
    places = with_entries(Site(paths), suffix, settled=False)
    assert places
    for segment, entries in places:
        put(segment, suffix, len(entries) - 1, *(3 for _ in entries[0]))
    report = verify(paths, ONE_THREAD)
    assert report.clean, [str(finding) for finding in report.findings]
    told = {finding.file for finding in report.findings}
    assert told == {segment.file(suffix) for segment, _ in places}


def test_there_are_enough_kinds_and_faults() -> None:
    assert len(KINDS) >= 60
    assert OF_A_KIND * len(KINDS) >= 200
    assert len(COMPARED) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("kinds", BLOCKS, ids=lambda kinds: f"{kinds[0]} to {kinds[-1]}")
@pytest.mark.parametrize(
    "seeds",
    [range(OF_A_KIND), pytest.param(range(OF_A_KIND, OF_A_KIND_LONG), marks=pytest.mark.long)],
    ids=["few", "many"],
)
def test_every_fault_is_found_and_none_is_invented(
    kinds: Sequence[str], seeds: range, clean: list[str], tmp_path: Path
) -> None:
    """The planter changes one directory only, and not the originals, whose copies are links."""
    before = _checksums(clean)
    wrong = []
    for kind in kinds:
        for seed in seeds:
            paths = copied(clean, str(tmp_path / f"{kind} {seed}"))
            untouched = _checksums(paths)
            fault = plant(Site(paths), kind, random.Random(f"{kind} {seed}"))
            told = complaints(fault, verify(paths, ONE_THREAD))
            wrong += [f"{kind}, seed {seed}: {line}" for line in told]
            _check_place(fault, paths, untouched)
    assert not wrong, "\n".join(wrong)
    assert _checksums(clean) == before


def _check_place(fault: Fault, paths: list[str], untouched: dict[str, str]) -> None:
    after = _checksums(paths)
    changed = {
        path for path in untouched.keys() | after.keys() if untouched.get(path) != after.get(path)
    }
    assert fault.kind == "directory_of_nothing" or changed
    broker = next(path for path in paths if fault.directory.startswith(path))
    partitions = {path for path in changed if Path(path).parent != Path(broker)}
    assert all(path.startswith(fault.directory) for path in partitions), changed
    assert all(path.startswith(broker) for path in changed), changed


@pytest.mark.parametrize("kind", COMPARED)
def test_one_replica_alone_does_not_show_it(kind: str, clean: list[str], tmp_path: Path) -> None:
    """What the format cannot tell: docs/verify.md, "What stays undetectable"."""
    paths = copied(clean, str(tmp_path))
    fault = plant(Site(paths), kind, random.Random(kind))
    damaged = next(path for path in paths if fault.directory.startswith(path))
    assert verify([damaged], ONE_THREAD).findings == []


def test_a_kind_that_fits_nowhere_says_so(clean: list[str], tmp_path: Path) -> None:
    """With one broker there is nobody to differ from."""
    paths = copied(clean[:1], str(tmp_path))
    for kind in COMPARED:
        with pytest.raises(NotHere):
            plant(Site(paths), kind, random.Random(1))
    assert verify(paths).clean


def test_the_judge_sees_what_is_missed_and_what_is_invented(
    clean: list[str], tmp_path: Path
) -> None:
    paths = copied(clean, str(tmp_path))
    fault = plant(Site(paths), ALONE[0], random.Random(1))
    told = verify(paths)
    assert complaints(fault, told) == []
    elsewhere = Fault("nothing", paths[0], frozenset(), frozenset(("F-1",)), kind="none")
    missed, *invented = complaints(elsewhere, told)
    assert "missed: wanted F-1" in missed
    assert invented
    assert all("invented" in line for line in invented)


def _checksums(paths: list[str]) -> dict[str, str]:
    return {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest()
        for path in paths
        for file in sorted(Path(path).rglob("*"))
        if file.is_file()
    }
