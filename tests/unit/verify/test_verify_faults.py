"""Each kind of fault, planted alone, is found with its rule and file, and nothing else is told."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable

import pytest
from verify_logs import LOG_DIR, PARTITION, check, cut, log_dir, names, patch, short

from logstore.format.batch import encode_batch
from logstore.format.index_entry import OFFSET_ENTRY, TIME_ENTRY, TXN_ENTRY
from logstore.format.producer_snapshot import decode_snapshot, encode_snapshot
from logstore.format.reader import iter_batches
from logstore.kernels import crc32c
from logstore.storage import File
from logstore.storage.memory import MemoryStorage
from logstore.verify import Severity, verify
from tests.support.cases import for_each

FIRST = "00000000000000000000"
Plant = Callable[[MemoryStorage], None]
FAULTS: dict[str, tuple[Plant, str, str, str]] = {}


def fault(severity: str, rule: str, file: str) -> Callable[[Plant], Plant]:
    """``file``: a name, ``first.log`` or ``last.log``."""

    def add(plant: Plant) -> Plant:
        FAULTS[plant.__name__] = (plant, severity, rule, file)
        return plant

    return add


def log_of(storage: MemoryStorage, which: int) -> str:
    return names(storage, ".log")[which]


def batches(storage: MemoryStorage, path: str) -> list[tuple[int, int]]:
    return [(b.position, b.size) for b in iter_batches(storage.read_file(path))]


def unclean(storage: MemoryStorage) -> None:
    storage.remove(f"{LOG_DIR}/.kafka_cleanshutdown")


def write(storage: MemoryStorage, name: str, text: str) -> None:
    storage.write_file(f"{LOG_DIR}/{name}", text.encode())


def entry(
    storage: MemoryStorage, suffix: str, index: int, fmt: struct.Struct, *fields: int
) -> None:
    patch(storage, names(storage, suffix)[0], index * fmt.size, fmt.pack(*fields))


# -- batches


@fault("error", "log-checksum", "first.log")
def flipped_payload(storage: MemoryStorage) -> None:
    position, size = batches(storage, log_of(storage, 0))[3]
    patch(storage, log_of(storage, 0), position + size - 1, b"\xff")


@fault("error", "log-checksum", "first.log")
def zeroed_sector(storage: MemoryStorage) -> None:
    position, size = batches(storage, log_of(storage, 0))[3]
    patch(storage, log_of(storage, 0), position + 21, bytes(size - 21))


@fault("error", "log-length", "first.log")
def hole_of_zeros_over_three_batches(storage: MemoryStorage) -> None:
    spans = batches(storage, log_of(storage, 0))[3:6]
    patch(storage, log_of(storage, 0), spans[0][0], bytes(sum(size for _, size in spans)))


@fault("error", "log-length", "first.log")
def length_too_large(storage: MemoryStorage) -> None:
    position, _ = batches(storage, log_of(storage, 0))[3]
    patch(storage, log_of(storage, 0), position + 8, struct.pack(">i", 2**31 - 1))


@fault("error", "log-length", "first.log")
def length_negative(storage: MemoryStorage) -> None:
    position, _ = batches(storage, log_of(storage, 0))[3]
    patch(storage, log_of(storage, 0), position + 8, struct.pack(">i", -5))


@fault("error", "log-magic", "first.log")
def magic_changed(storage: MemoryStorage) -> None:
    position, _ = batches(storage, log_of(storage, 0))[3]
    patch(storage, log_of(storage, 0), position + 16, b"\x01")


@fault("error", "log-base-offset", "first.log")
def base_offset_changed(storage: MemoryStorage) -> None:
    position, _ = batches(storage, log_of(storage, 0))[3]
    patch(storage, log_of(storage, 0), position + 7, b"\x7f")


@fault("error", "log-base-offset", "first.log")
def base_offset_of_the_last_batch_before_a_roll(storage: MemoryStorage) -> None:
    position, _ = batches(storage, log_of(storage, 0))[-1]
    patch(storage, log_of(storage, 0), position, struct.pack(">q", 1))


@fault("error", "log-epoch", "first.log")
def epoch_changed(storage: MemoryStorage) -> None:
    position, _ = batches(storage, log_of(storage, 0))[3]
    patch(storage, log_of(storage, 0), position + 12, struct.pack(">i", 2))


@fault("error", "log-offset-order", "last.log")
def old_batch_repeated_at_the_end(storage: MemoryStorage) -> None:
    unclean(storage)
    path = log_of(storage, -1)
    data = storage.read_file(path)
    position, size = batches(storage, path)[0]
    patch(storage, path, len(data), data[position : position + size])


@fault("warning", "log-offset-order", "last.log")
def batch_of_another_log_at_the_end(storage: MemoryStorage) -> None:
    unclean(storage)
    path = log_of(storage, -1)
    stranger = encode_batch([(b"k", b"v", 1)], base_offset=5000, leader_epoch=99)
    patch(storage, path, len(storage.read_file(path)), bytes(stranger))
    write_epochs(storage, 99, 5000)


def write_epochs(storage: MemoryStorage, epoch: int, start: int) -> None:
    path = f"{PARTITION}/leader-epoch-checkpoint"
    lines = storage.read_file(path).decode().splitlines()
    lines.append(f"{epoch} {start}")
    lines[1] = str(len(lines) - 2)
    storage.write_file(path, ("\n".join(lines) + "\n").encode())


# -- tails


@fault("warning", "log-torn-end", "last.log")
def torn_tail(storage: MemoryStorage) -> None:
    unclean(storage)
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        write(storage, name, "0\n1\norders 0 0\n")
    cut(storage, log_of(storage, -1), -3)


@fault("error", "log-unclean-end", "last.log")
def torn_tail_behind_a_clean_shutdown(storage: MemoryStorage) -> None:
    patch(
        storage,
        log_of(storage, -1),
        len(storage.read_file(log_of(storage, -1))),
        b"\x00" * 7 + b"x",
    )


@fault("error", "log-torn-end", "last.log")
def torn_tail_below_the_recovery_point(storage: MemoryStorage) -> None:
    unclean(storage)
    cut(storage, log_of(storage, -1), -3)


@fault("error", "log-torn-end", "first.log")
def torn_segment_in_the_middle(storage: MemoryStorage) -> None:
    cut(storage, log_of(storage, 0), -3)


@fault("error", "log-zero-end", "first.log")
def zero_tail_in_the_middle(storage: MemoryStorage) -> None:
    path = log_of(storage, 0)
    patch(storage, path, len(storage.read_file(path)), bytes(4096))


@fault("error", "log-zero-end", "first.log")
def zeroed_end_of_a_segment(storage: MemoryStorage) -> None:
    """Batches that are gone: what the replay of producers makes of the next segment is not told."""
    path = log_of(storage, 0)
    position, _ = batches(storage, path)[5]
    patch(storage, path, position, bytes(len(storage.read_file(path)) - position))


@fault("warning", "high-watermark", "last.log")
def zeroed_tail_below_the_high_watermark(storage: MemoryStorage) -> None:
    """Zeros at the end are normal, but not in the place of what was committed."""
    unclean(storage)
    storage.remove(names(storage, ".snapshot")[-1])  # only a clean shutdown takes one there
    write(storage, "recovery-point-offset-checkpoint", "0\n1\norders 0 0\n")
    path = log_of(storage, -1)
    position, size = batches(storage, path)[-1]
    patch(storage, path, position, bytes(size))


# -- segments


@fault("warning", "log-offset-order", "last.log")
def segment_missing(storage: MemoryStorage) -> None:
    base = log_of(storage, 1).removesuffix(".log")
    for suffix in (".log", ".index", ".timeindex"):
        storage.remove(base + suffix)


@fault("error", "log-offset-order", "first.log")
def segment_twice(storage: MemoryStorage) -> None:
    """S-53: a second copy of some batches under the base of their first."""
    path = log_of(storage, 0)
    data = storage.read_file(path)
    position, _ = batches(storage, path)[-1]
    base = int.from_bytes(data[position : position + 8], "big")
    storage.write_file(f"{PARTITION}/{base:020d}.log", data[position:])
    for suffix in (".index", ".timeindex"):
        storage.write_file(f"{PARTITION}/{base:020d}{suffix}", b"")
    timestamp = int.from_bytes(data[position + 35 : position + 43], "big")
    delta = int.from_bytes(data[position + 23 : position + 27], "big")
    storage.write_file(f"{PARTITION}/{base:020d}.timeindex", TIME_ENTRY.pack(timestamp, delta))


@fault("error", "log-offset-order", "first.log")
def one_record_of_the_next_segment(storage: MemoryStorage) -> None:
    """S-53, by a single offset."""
    path, following = log_of(storage, 0), storage.read_file(log_of(storage, 1))
    base, epoch = struct.unpack_from(">q4xi", following)
    more = encode_batch([(b"k", b"v", 1)], base_offset=base, leader_epoch=epoch)
    storage.write_file(path, storage.read_file(path) + more)


@fault("warning", "file-name", "5.log")
def odd_name(storage: MemoryStorage) -> None:
    storage.write_file(f"{PARTITION}/5.log", b"")


# -- indexes


@fault("error", "index-entry", "first.index")
def index_position_inside_a_batch(storage: MemoryStorage) -> None:
    data = storage.read_file(names(storage, ".index")[0])
    offset, position = OFFSET_ENTRY.unpack_from(data, 8)
    entry(storage, ".index", 1, OFFSET_ENTRY, offset, position + 1)


@fault("error", "index-entry", "first.index")
def index_position_past_the_end(storage: MemoryStorage) -> None:
    data = storage.read_file(names(storage, ".index")[0])
    entry(storage, ".index", 1, OFFSET_ENTRY, OFFSET_ENTRY.unpack_from(data, 8)[0], 10**6)


@fault("error", "index-order", "first.index")
def index_goes_back(storage: MemoryStorage) -> None:
    entry(storage, ".index", 3, OFFSET_ENTRY, 1, 100)


@fault("error", "index-entry", "first.index")
def index_offset_of_no_batch(storage: MemoryStorage) -> None:
    data = storage.read_file(names(storage, ".index")[0])
    path = log_of(storage, 0)
    last = {b.last_offset for b in iter_batches(storage.read_file(path))}
    offset, position = OFFSET_ENTRY.unpack_from(data, 8)
    wrong = next(o for o in range(offset + 1, offset + 50) if o not in last)
    entry(storage, ".index", 1, OFFSET_ENTRY, wrong, position)


@fault("warning", "index-partial-entry", "first.index")
def index_with_half_an_entry(storage: MemoryStorage) -> None:
    cut(storage, names(storage, ".index")[0], -3)


@fault("warning", "index-zeros", "first.index")
def index_with_zeros(storage: MemoryStorage) -> None:
    path = names(storage, ".index")[0]
    cut(storage, path, len(storage.read_file(path)) + 80)


@fault("warning", "log-without-index", "first.index")
def index_missing(storage: MemoryStorage) -> None:
    storage.remove(names(storage, ".index")[0])


@fault("warning", "index-without-log", "00000000000000009999.index")
def index_without_a_log(storage: MemoryStorage) -> None:
    storage.write_file(f"{PARTITION}/00000000000000009999.index", b"")


@fault("error", "timeindex-entry", "first.timeindex")
def time_too_small(storage: MemoryStorage) -> None:
    data = storage.read_file(names(storage, ".timeindex")[0])
    timestamp, offset = TIME_ENTRY.unpack_from(data, 12)
    entry(storage, ".timeindex", 1, TIME_ENTRY, timestamp - 1, offset)


@fault("error", "timeindex-order", "first.timeindex")
def time_goes_back(storage: MemoryStorage) -> None:
    entry(storage, ".timeindex", 2, TIME_ENTRY, 1000, 3)


@fault("warning", "timeindex-last-entry", "first.timeindex")
def time_index_without_its_last_entry(storage: MemoryStorage) -> None:
    cut(storage, names(storage, ".timeindex")[0], -12)


@fault("error", "txnindex-entries", "first.txnindex")
def aborted_transaction_missing(storage: MemoryStorage) -> None:
    cut(storage, names(storage, ".txnindex")[0], -34)


@fault("error", "txnindex-offsets", "first.txnindex")
def aborted_transaction_with_another_start(storage: MemoryStorage) -> None:
    path = names(storage, ".txnindex")[0]
    fields = list(TXN_ENTRY.unpack_from(storage.read_file(path)))
    fields[2] += 1
    patch(storage, path, 0, TXN_ENTRY.pack(*fields))


@fault("error", "txnindex-form", "first.txnindex")
def aborted_transaction_of_another_version(storage: MemoryStorage) -> None:
    patch(storage, names(storage, ".txnindex")[0], 34, b"\x00\x07")


@fault("warning", "txnindex-form", "first.txnindex")
def half_an_aborted_transaction(storage: MemoryStorage) -> None:
    path = names(storage, ".txnindex")[0]
    patch(storage, path, len(storage.read_file(path)), b"half")


# -- snapshots and checkpoints


@fault("error", "snapshot-form", "last.snapshot")
def snapshot_flipped(storage: MemoryStorage) -> None:
    patch(storage, names(storage, ".snapshot")[-1], 20, b"\xaa")


@fault("warning", "snapshot-producer", "last.snapshot")
def snapshot_of_another_state(storage: MemoryStorage) -> None:
    """A valid file, but with the state of one producer at an earlier offset."""
    first, last = names(storage, ".snapshot")[0], names(storage, ".snapshot")[-1]
    early = decode_snapshot(storage.read_file(first))[0]
    entries = decode_snapshot(storage.read_file(last))
    assert early.producer_id in [entry.producer_id for entry in entries]
    wrong = [early if entry.producer_id == early.producer_id else entry for entry in entries]
    storage.write_file(last, encode_snapshot(wrong))


@fault("error", "epochs-form", "leader-epoch-checkpoint")
def epochs_malformed(storage: MemoryStorage) -> None:
    storage.write_file(f"{PARTITION}/leader-epoch-checkpoint", b"0\n2\n3 0\n")


@fault("warning", "epochs-start", "leader-epoch-checkpoint")
def epochs_empty(storage: MemoryStorage) -> None:
    storage.write_file(f"{PARTITION}/leader-epoch-checkpoint", b"")


@fault("error", "log-epoch", "leader-epoch-checkpoint")
def epochs_that_descend(storage: MemoryStorage) -> None:
    storage.write_file(f"{PARTITION}/leader-epoch-checkpoint", b"0\n2\n3 0\n2 9\n")


@fault("warning", "epochs-range", "leader-epoch-checkpoint")
def epoch_above_the_end(storage: MemoryStorage) -> None:
    write_epochs(storage, 100, 10**6)


@fault("error", "partition-metadata", "partition.metadata")
def topic_id_malformed(storage: MemoryStorage) -> None:
    storage.write_file(f"{PARTITION}/partition.metadata", b"version: 0\ntopic_id: x")


@fault("error", "meta-form", "meta.properties")
def meta_malformed(storage: MemoryStorage) -> None:
    write(storage, "meta.properties", "version=1\nnode.id=many\n")


@fault("warning", "meta-missing", "meta.properties")
def meta_missing(storage: MemoryStorage) -> None:
    storage.remove(f"{LOG_DIR}/meta.properties")


@fault("error", "checkpoint-form", "replication-offset-checkpoint")
def offsets_malformed(storage: MemoryStorage) -> None:
    write(storage, "replication-offset-checkpoint", "0\n2\norders 0 1\n")


@fault("error", "recovery-point", "last.log")
def recovery_point_above_the_end(storage: MemoryStorage) -> None:
    write(storage, "recovery-point-offset-checkpoint", "0\n1\norders 0 99999\n")


@fault("error", "log-start-offset", "last.log")
def log_start_above_the_end(storage: MemoryStorage) -> None:
    write(storage, "log-start-offset-checkpoint", "0\n1\norders 0 99999\n")


@fault("error", "high-watermark", "last.log")
def high_watermark_above_the_end(storage: MemoryStorage) -> None:
    write(storage, "replication-offset-checkpoint", "0\n1\norders 0 99999\n")


@fault("warning", "cleaner-offset", "last.log")
def cleaner_above_the_end(storage: MemoryStorage) -> None:
    write(storage, "cleaner-offset-checkpoint", "0\n1\norders 0 99999\n")


@fault("warning", "checkpoint-stray", "recovery-point-offset-checkpoint")
def entry_of_an_unknown_partition(storage: MemoryStorage) -> None:
    text = storage.read_file(f"{LOG_DIR}/recovery-point-offset-checkpoint").decode()
    text = text.replace("0\n1\n", "0\n2\n", 1) + "gone 0 7\n"
    write(storage, "recovery-point-offset-checkpoint", text)


@fault("error", "directory-name", "nonsense")
def odd_directory(storage: MemoryStorage) -> None:
    storage.make_dir(f"{LOG_DIR}/nonsense")


@for_each("name", FAULTS, at_once=18)
def test_fault_is_found_and_nothing_else(name: str) -> None:
    plant, severity, rule, file = FAULTS[name]
    storage = log_dir(transactions=True, batches=150)
    first, last = names(storage, ".log")[0], names(storage, ".log")[-1]
    suffix = file.rsplit(".", 1)[-1]
    expected = file
    if file.startswith("first."):
        expected = names(storage, f".{suffix}")[0].rsplit("/", 1)[-1]
    elif file.startswith("last."):
        expected = names(storage, f".{suffix}")[-1].rsplit("/", 1)[-1]
    assert first != last
    assert check(storage).findings == []
    plant(storage)
    report = check(storage)
    found = short(report)
    if name == "segment_missing":  # the batch after the hole may also end an unknown transaction
        expected = names(storage, ".log")[1].rsplit("/", 1)[-1]
        assert (severity, rule, expected) in found
        return
    assert found == [(severity, rule, expected)], [str(f) for f in report.findings]
    worst = next(f for f in report.findings if f.severity is not Severity.INFO)
    if file.endswith(".log") and name != "odd_name":
        assert worst.segment_base >= 0 or worst.offset >= 0
        assert (worst.topic, worst.partition) == ("orders", 0)


@pytest.mark.parametrize("entry", [1, 2, -1])
def test_an_epoch_that_begins_inside_a_batch(entry: int) -> None:
    storage = log_dir(batches=150, seed=5)
    path = f"{PARTITION}/leader-epoch-checkpoint"
    head, lines = (text := storage.read_file(path).decode().splitlines())[:2], text[2:]
    epoch, start = map(int, lines[entry].split())
    lines[entry] = f"{epoch} {start + 1}"
    storage.write_file(path, "\n".join([*head, *lines, ""]).encode())
    (finding,) = check(storage).findings
    assert (finding.severity, finding.rule, finding.offset) == (Severity.ERROR, "log-epoch", start)


def test_leftovers_are_mentioned() -> None:
    storage = log_dir()
    for name in ("00000000000000000000.log.deleted", f"{FIRST}.index.swap", f"{FIRST}.log.cleaned"):
        storage.write_file(f"{PARTITION}/{name}", b"")
    storage.write_file(f"{PARTITION}/leader-epoch-checkpoint.tmp", b"")
    storage.write_file(f"{LOG_DIR}/meta.properties.tmp", b"")
    storage.make_dir(f"{LOG_DIR}/old-1.0123456789abcdef0123456789abcdef-delete")
    storage.make_dir(f"{LOG_DIR}/old-2.0123456789abcdef0123456789abcdef-stray")
    report = check(storage)
    assert report.clean
    found = Counter(finding.rule for finding in report.findings)
    assert found == {"leftover": 4, "temporary-file": 1, "directory-skipped": 2}


def test_two_topic_ids_in_one_topic() -> None:
    storage = log_dir()
    storage.make_dir(f"{LOG_DIR}/orders-1")
    text = b"version: 0\ntopic_id: AQIDBAUGBwgJCgsMDQ4PEA"
    storage.write_file(f"{LOG_DIR}/orders-1/partition.metadata", text)
    assert short(check(storage)) == [("error", "topic-id", "partition.metadata")]


def test_too_many_findings_are_counted() -> None:
    storage = log_dir()
    path = names(storage, ".log")[0]
    for position, size in batches(storage, path):
        patch(storage, path, position + size - 1, b"\xee")
    report = check(storage, findings_max=5)
    assert report.count(Severity.ERROR) <= 6  # and the last batch, which ends the file
    assert report.suppressed > 5


def test_a_file_that_vanishes_is_noted() -> None:
    storage = log_dir()
    victim = names(storage, ".log")[0]
    opened = storage.open

    def open_file(path: str, **how: bool) -> File:
        if path == victim:
            storage.remove(path)
        return opened(path, **how)

    storage.open = open_file  # type: ignore[method-assign]
    report = verify([PARTITION], storage=storage)
    assert [f.rule for f in report.findings if f.file == victim] == ["file-vanished"]
    assert not [f for f in report.findings if f.severity is Severity.ERROR]


@pytest.mark.parametrize("number", [0, 2, -1])
@pytest.mark.parametrize("clean", [True, False])
def test_the_records_that_cannot_be_read_are_counted(number: int, clean: bool) -> None:
    storage = log_dir(clean=clean)
    log = names(storage, ".log")[-1]
    batches = list(iter_batches(storage.read_file(log)))
    whole = check(storage).partitions[0].records
    batch = batches[number]
    data = storage.read_file(log)[batch.position : batch.end_position]
    patch(storage, log, batch.position + 70, bytes([data[70] ^ 1]))
    report = check(storage)
    assert (report.unreadable, report.partitions[0].records) == (
        batch.record_count,
        whole - batch.record_count,
    )
    assert report.to_dict()["unreadable"] == report.partitions[0].unreadable > 0


def test_records_under_a_right_checksum_that_cannot_be_decoded_are_counted() -> None:
    storage = log_dir()
    log = names(storage, ".log")[0]
    batch = list(iter_batches(storage.read_file(log)))[1]
    data = bytearray(storage.read_file(log)[batch.position : batch.end_position])
    data[61] ^= 0x7F  # the length of the first record
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    patch(storage, log, batch.position, bytes(data))
    assert check(storage).unreadable == batch.record_count


def test_zeros_that_a_crash_leaves_are_no_lost_records() -> None:
    storage = log_dir(clean=False)
    log = names(storage, ".log")[-1]
    patch(storage, log, len(storage.read_file(log)), bytes(5000))
    assert check(storage).unreadable == 0
