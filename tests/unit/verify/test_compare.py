"""Replicas of a partition against each other (I-4): brokers' directories, written by our engine.

``replicas`` gives the same log on several brokers, each with other segment boundaries; a test then
changes one of them so that it stays valid by itself, and says what is told of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verify_logs import DAMAGE, LOG_DIR, copy, harm, log_dir, names, patch

from logstore.common.config import LogConfig
from logstore.format.batch import encode_batch
from logstore.format.header import CRC_FROM, parse_header
from logstore.format.index_entry import TIME_ENTRY
from logstore.format.reader import iter_batches
from logstore.kernels import crc32c
from logstore.storage import Storage
from logstore.storage.memory import MemoryStorage
from logstore.verify import Severity, VerifyOptions, VerifyReport, verify
from logstore.verify.replicas import compare

SEGMENT_SIZES = (6000, 2500, 100_000, 6000, 2500)
HIGH_WATERMARK = "replication-offset-checkpoint"


def replicas(count: int = 3, *, batches: int = 60, clean: bool = True) -> MemoryStorage:
    """``/b0``, ``/b1``, …: brokers with these ids, and one log of 185 offsets."""
    storage = MemoryStorage()
    for number, segment_bytes in enumerate(SEGMENT_SIZES[:count]):
        config = LogConfig(
            segment_bytes=segment_bytes, index_interval_bytes=500, segment_index_bytes=4096
        )
        made = log_dir(config, batches=batches, clean=clean)
        copy(made, LOG_DIR, storage, f"/b{number}")
        set_id(storage, number, "node.id", str(number))
        set_id(storage, number, "cluster.id", "FAGVjHTzQc-7MaP0JSxQAg")
        set_topic_id(storage, number, "FAGVjHTzQc-7MaP0JSxQAg")
    return storage


def set_id(storage: Storage, broker: int, key: str, value: str) -> None:
    path = f"/b{broker}/meta.properties"
    lines = storage.read_file(path).decode().splitlines()
    lines = [f"{key}={value}" if line.startswith(key) else line for line in lines]
    storage.write_file(path, "\n".join(lines).encode() + b"\n")


def set_topic_id(storage: Storage, broker: int, topic_id: str) -> None:
    path = f"/b{broker}/orders-0/partition.metadata"
    storage.write_file(path, f"version: 0\ntopic_id: {topic_id}".encode())


def checkpoint(storage: Storage, broker: int, name: str, offset: int) -> None:
    storage.write_file(f"/b{broker}/{name}", b"0\n1\norders 0 %d\n" % offset)


def place(storage: Storage, broker: int, offset: int) -> tuple[str, int, int]:
    """The file, byte and size of the batch that holds an offset."""
    for path in names(storage, ".log", f"/b{broker}/orders-0"):
        for batch in iter_batches(storage.read_file(path)):
            if batch.base_offset <= offset <= batch.last_offset:
                return path, batch.position, batch.end_position - batch.position
    raise AssertionError(offset)


def rewrite(storage: Storage, broker: int, offset: int) -> tuple[str, int]:
    """Another last byte of the value in the batch's last record, under a matching checksum."""
    path, position, size = place(storage, broker, offset)
    data = bytearray(storage.read_file(path)[position : position + size])
    data[-2] ^= 0xFF  # the last byte is the number of headers
    data[17:21] = crc32c(data[CRC_FROM:]).to_bytes(4, "big")
    patch(storage, path, position, data)
    return path, position


def drop(storage: Storage, broker: int, offset: int) -> str:
    """Take a batch out of its file, and the indexes, which would tell of it."""
    path, position, size = place(storage, broker, offset)
    data = storage.read_file(path)
    storage.write_file(path, data[:position] + data[position + size :])
    for suffix in (".index", ".timeindex"):
        storage.write_file(path.replace(".log", suffix), b"")
    return path


def check(storage: Storage, *brokers: int, **options: bool) -> VerifyReport:
    found = [number for number in range(9) if storage.info(f"/b{number}")]
    paths = [f"/b{number}" for number in brokers or found]
    return verify(paths, VerifyOptions(**options), storage=storage)


def told(report: VerifyReport) -> list[tuple[str, str, str]]:
    """Severity, rule and broker of each finding."""
    return [(str(f.severity), f.rule, f.broker) for f in report.findings]


def test_equal_content_in_other_segments_is_equal() -> None:
    report = check(replicas(), fingerprint=True)
    assert report.findings == []
    assert report.clean
    parts = report.partitions
    assert [part.broker for part in parts] == ["0", "1", "2"]
    assert {part.segments for part in parts} == {2, 5, 1}
    assert {(part.compared_from, part.compared_end) for part in parts} == {(0, 185)}
    assert len({part.fingerprint for part in parts}) == 1


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_the_odd_one_of_three_is_told(odd: int) -> None:
    """Whichever of them is the reference."""
    storage = replicas()
    path, position = rewrite(storage, odd, 100)
    (finding,) = check(storage).findings
    assert (finding.severity, finding.rule, finding.broker) == (
        Severity.ERROR,
        "replicas-differ",
        str(odd),
    )
    assert (finding.file, finding.position) == (path, position)
    header = parse_header(storage.read_file(path), position)
    assert finding.offset == header.last_offset
    assert "records differ in value" in finding.message
    assert f"{header.base_offset}…{header.last_offset}" in finding.message
    others = ", ".join(f"broker {number}" for number in range(3) if number != odd)
    assert f"not as on {others}: here epoch" in finding.message


def test_between_two_both_sides_are_shown() -> None:
    storage = replicas(2)
    path, _ = rewrite(storage, 1, 60)
    (finding,) = check(storage).findings
    assert (finding.broker, finding.file) == ("1", path)
    assert finding.message.count("records in") == 2
    assert finding.message.endswith("they parted in epoch 4")


def test_a_batch_that_one_lacks() -> None:
    """The gap is a warning by itself: it may be history. The replicas prove that it is a loss."""
    storage = replicas(2)
    gone = place(storage, 0, 100)
    header = parse_header(storage.read_file(gone[0]), gone[1])
    drop(storage, 0, 100)
    report = check(storage)
    assert ("warning", "log-offset-order", "0") in told(report)
    (finding,) = [f for f in report.findings if f.rule == "replicas-differ"]
    assert (finding.severity, finding.broker) == (Severity.ERROR, "0")
    assert finding.offset == header.base_offset
    assert finding.message.startswith("missing here, present on broker 1: epoch 4, offsets ")


def test_a_batch_that_cannot_be_read_is_told_once() -> None:
    """The checksum tells of it; the comparison adds where it is whole."""
    storage = replicas()
    path, position, _ = place(storage, 1, 100)
    patch(storage, path, position + 70, b"\xff\xff")
    report = check(storage)
    assert told(report) == [("error", "log-checksum", "1"), ("info", "replicas-differ", "1")]
    assert report.findings[1].message.startswith(
        "unreadable here, whole on broker 0, broker 2: epoch 4"
    )


# -- logs written by hand: what an engine in order would not leave ------------------------------


def batch(offset: int, count: int = 2, epoch: int = 1, value: bytes = b"value") -> bytes:
    records = [(b"key", value, 1000 + offset)] * count
    return bytes(encode_batch(records, base_offset=offset, leader_epoch=epoch))


def broker(
    storage: MemoryStorage,
    number: int,
    batches: Sequence[bytes],
    *,
    mark: int | None = None,
    start: int | None = None,
    cleaner: int | None = None,
    rolls: Iterable[int] = (),
    epochs: bool = True,
) -> None:
    """A directory with ``batches``, a new segment at each offset of ``rolls``; no clean shutdown.

    ``mark``, ``start`` and ``cleaner`` are what the checkpoints say, if anything.
    """
    directory = f"/b{number}/orders-0"
    storage.make_dir(directory)
    meta = f"#\nversion=1\ncluster.id=c\nnode.id={number}\n"
    storage.write_file(f"/b{number}/meta.properties", meta.encode())
    for name, offset in (
        (HIGH_WATERMARK, mark),
        ("log-start-offset-checkpoint", start),
        ("cleaner-offset-checkpoint", cleaner),
    ):
        if offset is not None:
            checkpoint(storage, number, name, offset)
    headers = [parse_header(data) for data in batches]
    if epochs:
        begin = {header.leader_epoch: header.base_offset for header in reversed(headers)}
        lines = "".join(f"{epoch} {start}\n" for epoch, start in sorted(begin.items()))
        text = f"0\n{len(begin)}\n{lines}"
        storage.write_file(f"{directory}/leader-epoch-checkpoint", text.encode())
    bases = sorted({headers[0].base_offset, *rolls})
    for base, end in pairwise([*bases, 2**63]):
        held = [n for n, header in enumerate(headers) if base <= header.base_offset < end]
        name = f"{directory}/{base:020}"
        storage.write_file(f"{name}.log", b"".join(batches[n] for n in held))
        storage.write_file(f"{name}.index", b"")
        last = max((headers[n].last_offset, headers[n].max_timestamp) for n in held)
        entry = TIME_ENTRY.pack(last[1], last[0] - base)
        storage.write_file(f"{name}.timeindex", entry if end < 2**63 else b"")


def log(end: int, **odd: bytes) -> list[bytes]:
    """Batches of two records up to ``end``; ``at_10=b"…"`` gives that one another value."""
    return [batch(n, value=odd.get(f"at_{n}", b"value")) for n in range(0, end, 2)]


def apart(start: int, end: int) -> list[bytes]:
    """What another leader wrote."""
    return [batch(n, epoch=2, value=b"other") for n in range(start, end, 2)]


def test_lag_is_no_fault() -> None:
    """A replica that was not in sync ends early, below the others' high watermark."""
    storage = MemoryStorage()
    broker(storage, 0, log(100), mark=100)
    broker(storage, 1, log(100), mark=90)
    broker(storage, 2, log(40), mark=40)
    report = check(storage)
    assert report.findings == []
    assert [part.compared_end for part in report.partitions] == [90, 90, 40]


def test_a_replica_far_behind_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_SPAN", 16)
    storage = MemoryStorage()
    broker(storage, 0, log(100), mark=100)
    broker(storage, 1, log(100, at_80=b"other"), mark=100)
    broker(storage, 2, log(40), mark=4)
    report = check(storage)
    assert [(f.rule, f.offset, f.broker) for f in report.findings] == [("replicas-differ", 80, "1")]


def test_a_high_watermark_that_was_never_written_hides_nothing_of_the_others() -> None:
    """All of these lie in one range. What is not compared is said to be so."""
    storage = MemoryStorage()
    broker(storage, 0, log(100), mark=100)
    broker(storage, 1, log(100, at_80=b"other"), mark=100)
    broker(storage, 2, log(100, at_20=b"more"), mark=0)
    report = check(storage)
    assert [(f.severity, f.offset, f.broker) for f in report.findings] == [
        (Severity.INFO, -1, "2"),
        (Severity.ERROR, 80, "1"),
    ]
    assert "not compared: high watermark 0" in report.findings[0].message
    assert report.findings[0].file == "/b2/orders-0"
    checkpoint(storage, 2, HIGH_WATERMARK, 22)
    assert sorted(f.offset for f in check(storage).findings) == [20, 80]


def test_one_that_ends_before_has_no_vote() -> None:
    """Of the two that reach so far, the one that lacks a batch is told of."""
    storage = MemoryStorage()
    without = [data for n, data in enumerate(log(100)) if n != 40]
    broker(storage, 0, without, mark=100)
    broker(storage, 1, log(100), mark=98)
    broker(storage, 2, log(40), mark=40)
    (finding,) = [f for f in check(storage).findings if f.rule == "replicas-differ"]
    assert (finding.broker, finding.offset) == ("0", 80)
    assert finding.message.startswith("missing here, present on broker 1: epoch 1, offsets 80…81")


def test_one_that_differs_from_both_agrees_with_none() -> None:
    storage = MemoryStorage()
    for number, value in enumerate((b"one", b"two", b"three")):
        broker(storage, number, log(100, at_80=value), mark=100)
    found = check(storage).findings
    assert [(f.broker, f.offset) for f in found] == [("1", 80), ("2", 80)]
    assert all("not as on broker 0: " in f.message for f in found)


def test_above_the_high_watermark_replicas_may_differ() -> None:
    """Truncation comes with the next fetch of the follower."""
    storage = MemoryStorage()
    broker(storage, 0, log(100), mark=60)
    broker(
        storage,
        1,
        log(60) + apart(60, 80),
        mark=60,
    )
    assert check(storage).findings == []
    checkpoint(storage, 1, HIGH_WATERMARK, 62)
    checkpoint(storage, 0, HIGH_WATERMARK, 62)
    (finding,) = check(storage).findings
    assert finding.offset == 60
    assert finding.message.endswith("they parted after epoch 1")


@pytest.mark.parametrize(("start", "found"), [(50, [50]), (52, [])])
def test_below_the_highest_log_start_nothing_is_compared(start: int, found: list[int]) -> None:
    storage = MemoryStorage()
    broker(storage, 0, log(100), mark=100)
    broker(storage, 1, log(100, at_50=b"other"), mark=100, start=start)
    assert [finding.offset for finding in check(storage).findings] == found


@pytest.mark.parametrize("start", [10, 11])
def test_a_log_that_begins_inside_a_batch(start: int) -> None:
    """DeleteRecords sets a log start anywhere; retention then removes whole segments."""
    storage = MemoryStorage()
    broker(storage, 0, log(100), mark=100, start=start)
    broker(storage, 1, log(100)[5:], mark=100)
    assert check(storage).findings == []


def test_compacted_replicas_differ_below_the_cleaner_offset() -> None:
    storage = MemoryStorage()
    broker(storage, 0, log(100), mark=100, rolls=[50])
    compacted = [data for n, data in enumerate(log(100, at_80=b"other")) if n > 20 or n % 3]
    broker(storage, 1, compacted, mark=100, cleaner=50, rolls=[50])
    report = check(storage)
    infos = [(f.rule, f.broker) for f in report.findings if f.severity is Severity.INFO]
    assert infos == [("log-compacted-gap", "1"), ("log-compacted-gap", "0")]
    assert "compared from offset 50 on" in report.findings[-2].message
    assert [f.offset for f in report.findings if f.severity is Severity.ERROR] == [80]


def test_a_follower_of_a_compacted_leader_has_holes_and_no_cleaner_offset() -> None:
    storage = MemoryStorage()
    hole = bytearray(batch(10, count=2))
    hole[23:27] = (3).to_bytes(4, "big")  # the last of four offsets, two of which are left
    hole[17:21] = crc32c(hole[CRC_FROM:]).to_bytes(4, "big")
    broker(storage, 0, log(100), mark=100, rolls=[50])
    broker(storage, 1, [*log(10), bytes(hole), *log(100)[7:]], mark=100, rolls=[50])
    report = check(storage)
    assert report.clean
    assert [part.compared_from for part in report.partitions] == [50, 50]


def test_without_a_high_watermark_a_difference_is_a_warning() -> None:
    """Nothing says that it was committed."""
    storage = MemoryStorage()
    broker(storage, 0, log(100))
    broker(storage, 1, log(100, at_50=b"other"))
    report = check(storage)
    assert told(report) == [("info", "replicas-differ", "1"), ("warning", "replicas-differ", "1")]
    assert "no high watermark on file: compared up to offset 100" in report.findings[0].message


def test_partition_directories_alone_are_compared() -> None:
    storage = MemoryStorage()
    broker(storage, 0, log(20))
    broker(storage, 1, log(20, at_4=b"other"))
    for number in range(2):
        storage.remove(f"/b{number}/meta.properties")
    report = verify(["/b0/orders-0", "/b1/orders-0"], storage=storage)
    assert told(report) == [
        ("info", "replicas-differ", "/b1"),
        ("warning", "replicas-differ", "/b1"),
    ]
    assert "not as on /b0:" in report.findings[1].message


def test_another_leader_epoch_for_the_same_offsets() -> None:
    """Outside the checksum: without leader-epoch-checkpoint nothing else tells of it (F-62)."""
    storage = MemoryStorage()
    other = [batch(n, epoch=2 if n >= 60 else 1) for n in range(0, 100, 2)]
    one = [batch(n, epoch=2 if n >= 50 else 1) for n in range(0, 100, 2)]
    for number in range(3):
        broker(storage, number, other if number == 2 else one, mark=100, epochs=False)
    report = check(storage)
    (finding,) = [f for f in report.findings if f.rule == "replicas-differ"]
    assert (finding.severity, finding.broker, finding.offset) == (Severity.ERROR, "2", 50)
    assert "here leader epoch 1 at offsets 0…59; there leader epoch 2" in finding.message


def test_a_wrong_leader_epoch_does_not_hide_that_they_parted_later() -> None:
    storage = MemoryStorage()
    usual = [batch(n, epoch=2 if n >= 50 else 1) for n in range(0, 100, 2)]
    other = [batch(n, epoch=2 if n >= 60 else 1) for n in range(0, 100, 2)]
    other[5] = batch(10, epoch=7)
    broker(storage, 0, usual, mark=100)
    broker(storage, 1, other, mark=100, epochs=False)
    found = [(f.rule, f.offset) for f in check(storage).findings if f.severity is Severity.ERROR]
    assert found == [("log-epoch-falls", 10), ("replicas-differ", 50)]


@pytest.mark.parametrize(
    ("offset", "epoch", "rule"), [(98, 1, "log-epoch-falls"), (50, 7, "log-epoch")]
)
def test_what_may_be_healthy_in_one_log_is_not_where_others_differ(
    offset: int, epoch: int, rule: str
) -> None:
    """Epochs may fall, and those on file be old above the recovery point: then in all replicas."""
    storage = MemoryStorage()
    usual = [batch(n, epoch=3) for n in range(0, 100, 2)]
    other = [batch(n, epoch=epoch if n == offset else 3) for n in range(0, 100, 2)]
    for number in range(3):
        broker(storage, number, usual, mark=100)
    storage.write_file("/b1/orders-0/00000000000000000000.log", b"".join(other))
    found = [(f.severity, f.rule, f.broker, f.offset) for f in check(storage).findings]
    assert (Severity.INFO, rule, "1", offset) in found
    assert [each for each in found if each[0] is not Severity.INFO] == [
        (Severity.ERROR, "replicas-differ", "1", offset)
    ]


def test_a_topic_of_another_id_is_another_topic() -> None:
    """F-37. It was deleted and made anew while this broker was away."""
    storage = replicas(2)
    rewrite(storage, 1, 60)
    set_topic_id(storage, 1, "XPvAc-Y_RgmzDRjYssQJcA")
    report = check(storage)
    assert told(report) == [("error", "topic-id", "1")]
    assert "/b0/orders-0/partition.metadata" in report.findings[0].message


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_replica_without_topic_id_is_compared(number: int) -> None:
    """Whichever of them is the reference. An id that only one has does not hide the others."""
    storage = replicas()
    rewrite(storage, 1, 60)
    storage.remove(f"/b{number}/orders-0/partition.metadata")
    assert told(check(storage)) == [("error", "replicas-differ", "1")]
    set_topic_id(storage, 0, "XPvAc-Y_RgmzDRjYssQJcA")
    storage.write_file("/b0/log-start-offset-checkpoint", b"0\n1\norders 0 180\n")
    found = told(check(storage, 2, 1, 0))
    assert ("error", "replicas-differ", "1") in found


def test_directories_of_different_clusters_have_nothing_in_common() -> None:
    storage = replicas(2)
    rewrite(storage, 1, 60)
    set_id(storage, 1, "cluster.id", "another")
    report = check(storage)
    assert told(report) == [("info", "other-cluster", "")]
    assert report.clean


def test_comparing_can_be_left_out() -> None:
    storage = replicas(2)
    rewrite(storage, 1, 60)
    assert check(storage, compare=False).findings == []


def test_a_long_divergence_is_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-2: two leaders went on apart, for longer than is worth reading again."""
    monkeypatch.setattr(compare, "_SPAN", 8)
    storage = MemoryStorage()
    broker(storage, 0, log(200), mark=200)
    broker(
        storage,
        1,
        log(60) + apart(60, 200),
        mark=200,
    )
    (finding,) = check(storage).findings
    assert finding.offset == 60
    assert "they differ up to offset 199" in finding.message


def test_many_differences_do_not_cost_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_SPAN", 8)
    monkeypatch.setattr(compare, "_READ_MAX", 3)
    storage = MemoryStorage()
    broker(storage, 0, log(200), mark=200)
    odd = {f"at_{n}": b"other" for n in range(0, 200, 20)}
    broker(storage, 1, log(200, **odd), mark=200)
    report = check(storage)
    assert [finding.offset for finding in report.findings] == [0, 20, 40, 56]
    assert "7 more ranges of 8 offsets differ" in report.findings[-1].message


ROLLS = st.sets(st.integers(0, 59), max_size=6)


@pytest.mark.slow
@settings(max_examples=100)
@given(
    counts=st.lists(st.integers(1, 9), min_size=5, max_size=60),
    odd=st.sets(st.integers(0, 59)),
    lost=st.sets(st.integers(0, 59), max_size=3),
    rolls=st.tuples(ROLLS, ROLLS),
    span=st.sampled_from((1, 3, 16, 50, 65_536)),
)
def test_exactly_what_differs_is_told(
    counts: list[int],
    odd: set[int],
    lost: set[int],
    rolls: tuple[set[int], set[int]],
    span: int,
) -> None:
    """Whatever the ranges and the segments: the offsets told are those of the batches changed."""
    bases = list(accumulate(counts, initial=0))
    plain = [batch(base, count) for base, count in zip(bases, counts, strict=False)]
    odd = {n for n in odd if n < len(plain)}
    lost = {n for n in lost if 0 < n < len(plain) - 1}  # else the log begins or ends elsewhere
    other = [
        batch(bases[n], counts[n], value=b"other" if n in odd else b"value")
        for n in range(len(plain))
        if n not in lost
    ]
    storage = MemoryStorage()
    for number, batches in enumerate((plain, other)):
        held = [parse_header(data).base_offset for data in batches]
        at = [held[n] for n in rolls[number] if n < len(held)]
        broker(storage, number, batches, mark=bases[-1], rolls=at)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(compare, "_SPAN", span)
        patched.setattr(compare, "_READ_MAX", 10_000)
        report = check(storage)
    wrong = sorted(odd | lost)
    first = [n for n in wrong if n - 1 not in wrong]  # neighbours are one difference
    told = sorted(
        finding.offset for finding in report.findings if finding.rule == "replicas-differ"
    )
    assert told == [bases[n] for n in first]


@pytest.mark.parametrize("damage", ["torn", "flipped", "zeroed"])
@pytest.mark.parametrize("odd", [0, 1, 2])
def test_who_cannot_read_a_batch_does_not_say_that_it_lacks_it(odd: int, damage: str) -> None:
    """One cannot read it, one has lost it, and the third is whole: that one is not to blame."""
    storage = replicas()
    lost, whole = (odd + 1) % 3, (odd + 2) % 3
    path, position, size = place(storage, odd, 5)
    data = storage.read_file(path)
    if damage == "flipped":
        patch(storage, path, position + size - 5, bytes([data[position + size - 5] ^ 255]))
    else:
        base = int.from_bytes(data[position : position + 8], "big")
        end = base + int.from_bytes(data[position + 23 : position + 27], "big") + 1
        split(storage, path, position + size, end)
        rest = b"" if damage == "torn" else bytes(size - 20)
        storage.write_file(path, data[: position + 20] + rest)
    drop(storage, lost, 5)
    report = check(storage)
    blamed = {(f.severity, f.broker) for f in report.findings if f.rule == "replicas-differ"}
    assert blamed == {(Severity.INFO, str(odd)), (Severity.ERROR, str(lost))}
    assert str(whole) not in {broker for _, broker in blamed}
    assert report.unreadable > 0


def blamed(report: VerifyReport) -> set[str]:
    """The brokers that an error or a warning tells of."""
    return {f.broker for f in report.findings if f.severity is not Severity.INFO}


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("odd", [0, 1])
def test_the_only_whole_replica_is_never_blamed(odd: int, kind: str, count: int) -> None:
    """However many others have the same damage in the same place."""
    storage = replicas(count)
    for number in set(range(count)) - {odd}:
        harm(storage, place(storage, number, 100)[0], kind, 0.5)
    assert str(odd) not in blamed(check(storage))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_damage_blames_no_whole_replica(seed: int) -> None:
    """Other damage in each replica but one."""
    plain = replicas(5)
    for number in range(100 * seed, 100 * (seed + 1)):
        rng = Random(number)
        count = rng.choice((2, 3, 3, 5))
        storage = MemoryStorage()
        for each in range(count):
            copy(plain, f"/b{each}", storage, f"/b{each}")
        whole = rng.randrange(count)
        for each in set(range(count)) - {whole}:
            logs = names(storage, ".log", f"/b{each}/orders-0")
            for path in rng.sample(logs, rng.randint(0, min(2, len(logs)))):
                harm(storage, path, rng.choice(DAMAGE), rng.random())
        assert str(whole) not in blamed(check(storage)), number


def split(storage: Storage, path: str, position: int, base: int) -> None:
    """Move what is behind a byte into a segment of its own, without indexes."""
    data = storage.read_file(path)
    folder = path.rpartition("/")[0]
    for suffix in (".index", ".timeindex"):
        storage.write_file(path.replace(".log", suffix), b"")
        storage.write_file(f"{folder}/{base:020d}{suffix}", b"")
    storage.write_file(f"{folder}/{base:020d}.log", data[position:])
    storage.write_file(path, data[:position])
