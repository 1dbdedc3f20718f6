"""Every flipped bit of the files beside the logs is found, or cannot be told from what is right.

``--long`` tries every bit, else it is a drawn sample with a fixed seed. ``-s`` prints how many hit
which field that nothing protects: the list in docs/verify.md.
"""

from __future__ import annotations

import json
import random
import struct
from collections import Counter

import pytest
from verify_files import ROOTS, FileFlip, check_root, every_file, flipped, flips_of

from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH
from checkpoints.meta_properties import META_PROPERTIES, parse_properties
from checkpoints.offset_checkpoint import CLEANER, HIGH_WATERMARK, LOG_START
from checkpoints.topic_properties import TOPIC_PROPERTIES
from logstore.format.reader import batch_records, iter_batches
from logstore.storage.memory import MemoryStorage

Words = list[list[str]]


def reason(storage: MemoryStorage, path: str, before: bytes, after: bytes) -> str:
    """Why nothing can tell of this change; empty if something should."""
    name = path.rsplit("/", 1)[1]
    if name in (META_PROPERTIES, TOPIC_PROPERTIES):
        return _properties(path, before, after)
    if name == ".kafka_cleanshutdown":
        one, two = json.loads(before), json.loads(after)
        return "epoch: nothing else has it" if one["version"] == two["version"] == 0 else ""
    if name.endswith(".index"):
        return _offset_index(storage, path, after)
    if name.endswith(".timeindex"):
        return _time_index(storage, path, after)
    if name.endswith(".txnindex"):
        return _transactions(storage, path, before, after)
    if name.endswith(".snapshot"):
        return (
            "of a log that nobody closed: the next start makes it anew" if "/new/" in path else ""
        )
    return _entries(
        name, *([line.split() for line in d.decode().split("\n")] for d in (before, after))
    )


def _properties(path: str, before: bytes, after: bytes) -> str:
    one, two = ({k: v[0] for k, v in parse_properties(path, d).items()} for d in (before, after))
    if one == two:
        return "comment"
    changed = {key for key in one.keys() | two.keys() if one.get(key) != two.get(key)}
    alone = {"node.id", "cluster.id", "directory.id"}
    return (
        f"{min(changed)}: nothing else has it"
        if one.keys() == two.keys() <= alone | {"version"} and changed <= alone
        else ""
    )


def _offset_index(storage: MemoryStorage, path: str, after: bytes) -> str:
    """An entry of an append of several batches: from the start of one to the end of another one,
    before the next entry. A search that begins there finds the same."""
    log = path.replace(".index", ".log")
    base = int(path.rsplit("/", 1)[1][:20])
    batches = list(iter_batches(storage.read_file(log)))
    starts = {batch.position: batch.last_offset for batch in batches}
    lasts = {batch.last_offset for batch in batches}
    entries = [(base + o, p) for o, p in struct.iter_unpack(">ii", after)]
    firsts = {(batch.base_offset, batch.position) for batch in batches}
    fit = all(
        (p in starts and o in lasts and starts[p] <= o) or (o, p) in firsts for o, p in entries
    )
    if not fit or entries != sorted(entries):
        return ""
    return "as of an append of several batches, or before Kafka 2.0"


def _transactions(storage: MemoryStorage, path: str, before: bytes, after: bytes) -> str:
    """A first offset or a last stable offset of records that are deleted."""
    names = [entry.name for entry in storage.scan_dir(path.rpartition("/")[0])]
    start = min(int(name[:20]) for name in names if name.endswith(".log"))
    for one, two in zip(*(struct.iter_unpack(">hqqqq", d) for d in (before, after)), strict=True):
        for field, (was, now) in enumerate(zip(one, two, strict=True)):
            if was != now and not (field in (2, 4) and was < start > now):
                return ""
    return "below the log"


def _time_index(storage: MemoryStorage, path: str, after: bytes) -> str:
    """Some releases name the first record with the timestamp instead of the last of its batch."""
    base = int(path.rsplit("/", 1)[1][:20])
    data = storage.read_file(path.replace(".timeindex", ".log"))
    right = set()
    for batch in iter_batches(data):
        records = batch_records(data, batch)
        top = max(record.timestamp for record in records)
        right |= {(top, batch.last_offset)}
        right |= {(top, next(r.offset for r in records if r.timestamp == top))}
    fit = all((t, base + o) in right for t, o in struct.iter_unpack(">qi", after))
    return "the first record with the timestamp, not the last of its batch" if fit else ""


def _entries(name: str, one: Words, two: Words) -> str:
    """Of a checkpoint, a cursor or a mark: which number, in lines of the same form."""
    changed = [
        (n, i)
        for n, (a, b) in enumerate(zip(one, two, strict=True))
        for i, (x, y) in enumerate(zip(a, b, strict=True))
        if x != y
    ]
    if len(changed) != 1 or changed[0][0] < 2:
        return ""
    return EXPLAINED.get(
        (
            name.rpartition(".")[2]
            if "cursor" in name
            else name.rpartition("topic-creation-")[1] or name,
            changed[0][1],
        ),
        "",
    )


EXPLAINED = {
    (HIGH_WATERMARK, 2): "any offset up to the log end may be the high watermark",
    (LOG_START, 2): "a kill may leave a log that begins before its epochs",
    (LEADER_EPOCH, 1): "a kill may leave a log that begins before its epochs",
    (CLEANER, 1): "any partition may have been compacted",
    (CLEANER, 2): "any offset up to the log end may be clean",
    ("cursor", 0): "another position behind the same batch",
    ("clean-stop", 4): "a copy of the log has another time as well: it is only recovered",
    ("topic-creation-", 1): "a partition may be in another directory, or not be made yet",
}
"""File and number of the field → why a changed one may be right."""


@pytest.fixture(scope="module")
def storage() -> MemoryStorage:
    return every_file()


def test_there_is_every_kind_of_file_and_all_is_clean(storage: MemoryStorage) -> None:
    for root in ROOTS:
        report = check_root(storage, root)
        assert report.clean, [str(finding) for finding in report.findings]
    names = {flip.path.rsplit("/", 1)[1] for flip in flips_of(storage)}
    kinds = {name.rpartition(".")[2] if name[:1].isdigit() else name[:14] for name in names}
    assert kinds == {
        "index",
        "timeindex",
        "txnindex",
        "snapshot",
        "leader-epoch-c",
        "partition.meta",
        "topic.properti",
        "billing.cursor",
        "audit.cursor",
        "clean-stop",
        "recovery-point",
        "replication-of",
        "log-start-offs",
        "cleaner-offset",
        "meta.propertie",
        ".kafka_cleansh",
        "topic-creation",
    }


@pytest.mark.slow
@pytest.mark.parametrize("every", [18, pytest.param(1, marks=pytest.mark.long)])
def test_every_flip_is_found_or_explained(storage: MemoryStorage, every: int) -> None:
    """One of so many."""
    flips = list(flips_of(storage))
    unseen: Counter[tuple[str, str]] = Counter()
    for flip in random.Random(17).sample(flips, len(flips) // every):
        before = storage.read_file(flip.path)
        after, report = flipped(storage, flip)
        assert not report.unusable, (flip, report.unusable)
        if report.clean:
            why = reason(storage, flip.path, before, after)
            assert why, (flip, before, after)
            unseen[flip.path, why] += 1
    for (path, why), count in sorted(unseen.items()):
        print(f"{path:60} {count:5} {why}")


@pytest.mark.parametrize(
    ("name", "line", "position", "bit"),
    [
        ("recovery-point-offset-checkpoint", "orders 0", -1, 0),  # below the log end
        ("orders-0/partition.metadata", "version", 0, 0),  # the name of a key
        ("orders-0/billing.cursor", "", 20, 0),
        (".kafka_cleanshutdown", "", 2, 0),
    ],
)
def test_some_that_no_reader_minds(
    storage: MemoryStorage, name: str, line: str, position: int, bit: int
) -> None:
    path = f"/data/{name}"
    data = storage.read_file(path).decode()
    begin = data.index(line)
    end = (data + "\n").index("\n", begin)
    place = (end if position < 0 else begin) + position
    _, report = flipped(storage, FileFlip(path, place, bit))
    assert not report.clean
