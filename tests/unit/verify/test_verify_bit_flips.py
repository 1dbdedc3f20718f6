"""S-49 on committed batches: every flipped bit is found, or hit a byte that nothing protects.

The seeds are fixed; ``-s`` prints, for each field, which rules found the flips in it, and what
survived: the list in docs/verify.md.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from verify_logs import PARTITION, check, log_dir, names, patch

from logstore.format.reader import iter_batches
from logstore.storage.memory import MemoryStorage
from logstore.verify import Finding, Severity

COUNTS = pytest.mark.parametrize("count", [750, pytest.param(20_000, marks=pytest.mark.long)])
FIELDS = (
    ("base offset", 8),
    ("length", 12),
    ("leader epoch", 16),
    ("magic", 17),
    ("crc", 21),
    ("rest of the header", 61),
)


class Flip(NamedTuple):
    path: str
    position: int
    bit: int
    batch: int
    next_batch: int
    is_last: bool
    field: str
    previous: int = -1


def flips(storage: MemoryStorage, count: int, seed: int, unprotected: bool) -> list[Flip]:
    """Single bits of whole batches; ``unprotected`` picks among the 17 bytes outside the crc."""
    rng = random.Random(seed)
    spans = [
        (path, batch.position, batch.end_position)
        for path in names(storage, ".log")
        for batch in iter_batches(storage.read_file(path))
    ]
    before = {(path, end): start for path, start, end in spans}
    weights = [1 if unprotected else end - start for _, start, end in spans]
    out = []
    for path, start, end in rng.choices(spans, weights, k=count):
        at = rng.randrange(17 if unprotected else end - start)
        field = next((name for name, stop in FIELDS if at < stop), "records")
        last = (path, start, end) == spans[-1]
        place, bit = start + at, 1 << rng.randrange(8)
        previous = before.get((path, start), -1)
        out.append(Flip(path, place, bit, start, end, last, field, previous))
    return out


def run(
    storage: MemoryStorage, wanted: list[Flip], exact: bool = True
) -> tuple[Counter[tuple[str, str]], list[Flip]]:
    """Flip, verify, flip back: ``(field, rule) -> count``, and the flips that went unseen.

    Unless ``exact``, an index that contradicts a batch may be named in its place. An epoch that
    falls is told, though it may be healthy.
    """
    assert check(storage, PARTITION).clean
    rules: Counter[tuple[str, str]] = Counter()
    unseen = []
    for flip in wanted:
        byte = storage.read_file(flip.path)[flip.position]
        patch(storage, flip.path, flip.position, bytes([byte ^ flip.bit]))
        told = check(storage, PARTITION).findings
        found = [f for f in told if f.severity is not Severity.INFO or f.rule == "log-epoch-falls"]
        patch(storage, flip.path, flip.position, bytes([byte]))
        if not found:
            unseen.append(flip)
            continue
        assert not exact or located(found, flip), (flip, [str(f) for f in found])
        rules[flip.field, found[0].rule] += 1
    for (field, rule), count in sorted(rules.items()):
        print(f"{field:20} {rule:6} {count}")
    print("unseen:", Counter((flip.field, flip.is_last) for flip in unseen))
    return rules, unseen


def located(found: list[Finding], flip: Flip) -> bool:
    """The first finding names the file and the batch; what only order tells, maybe a neighbour."""
    places = [flip.batch]
    if flip.field in ("base offset", "leader epoch"):
        places += [flip.next_batch, flip.previous]
        if found[0].file > flip.path and found[0].position == 0:  # the first of the next segment
            return True
    return found[0].file == flip.path and found[0].position in places


@pytest.mark.slow
@COUNTS
@pytest.mark.parametrize("unprotected", [False, True])
@pytest.mark.parametrize("transactions", [False, True])
def test_every_flip_is_found(transactions: bool, unprotected: bool, count: int) -> None:
    """With its leader-epoch-checkpoint a log that was never compacted hides no flip at all."""
    storage = log_dir(transactions=transactions, codecs=("none", "gzip", "lz4", "zstd"))
    _, unseen = run(storage, flips(storage, count, 11, unprotected))
    assert unseen == []


@pytest.mark.slow
@COUNTS
def test_without_the_epoch_file_only_epochs_can_hide(count: int) -> None:
    """What stays between the epochs of its neighbours is plausible: undetectable by the format."""
    storage = log_dir()
    storage.remove(f"{PARTITION}/leader-epoch-checkpoint")
    _, unseen = run(storage, flips(storage, count, 28, unprotected=True))
    assert {flip.field for flip in unseen} <= {"leader epoch"}
    assert unseen  # at the ends of the log, and where an epoch begins


@pytest.mark.slow
@COUNTS
def test_in_a_compacted_log_offsets_can_hide_in_gaps(count: int) -> None:
    """Where gaps are normal, a base offset that stays between its neighbours is plausible too."""
    storage = MemoryStorage()
    storage.make_dir(PARTITION)
    folder = Path(__file__).parents[2] / "golden" / "data" / "v2-compacted-none"
    for file in folder.glob("0*"):
        storage.write_file(f"{PARTITION}/{file.name}", file.read_bytes())
    _, unseen = run(storage, flips(storage, count, 13, unprotected=True), exact=False)
    assert {flip.field for flip in unseen} <= {"leader epoch", "base offset"}


def test_every_bit_outside_the_checksum_of_one_batch() -> None:
    """All 136 of them, in a batch with neighbours."""
    storage = log_dir(batches=12)
    path = names(storage, ".log")[0]
    batch = list(iter_batches(storage.read_file(path)))[5]
    wanted = []
    for bit in range(17 * 8):
        field = next(name for name, stop in FIELDS if bit // 8 < stop)
        place = batch.position + bit // 8
        wanted.append(
            Flip(path, place, 1 << bit % 8, batch.position, batch.end_position, False, field)
        )
    rules, unseen = run(storage, wanted)
    assert unseen == []
    assert sum(rules.values()) == len(wanted)
    assert {field: rule for field, rule in rules if field in ("length", "magic")} == {
        "length": "log-length",
        "magic": "log-magic",
    }
