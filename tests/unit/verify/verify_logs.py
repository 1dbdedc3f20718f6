"""Logs to verify: written by our own engine into memory, and findings in a short form."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable

from logstore.common.config import LogConfig
from logstore.format.batch import encode_batch, end_transaction_marker
from logstore.format.codecs.compression import Compression
from logstore.format.control import ControlType
from logstore.format.reader import iter_batches
from logstore.log import PartitionLog, run_inline
from logstore.manager import LogManager, ManagerOwner
from logstore.segments.producer_state import AppendOrigin
from logstore.storage import Storage
from logstore.storage.memory import MemoryStorage
from logstore.testing import ManualClock
from logstore.verify import Severity, VerifyOptions, VerifyReport, verify

LOG_DIR = "/data"
PARTITION = f"{LOG_DIR}/orders-0"
SMALL = LogConfig(segment_bytes=6000, index_interval_bytes=500, segment_index_bytes=4096)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def log_dir(
    config: LogConfig = SMALL,
    *,
    batches: int = 60,
    seed: int = 1,
    transactions: bool = False,
    codecs: Iterable[str] = ("none",),
    clean: bool = True,
) -> MemoryStorage:
    """A log directory with one partition of several segments and four leader epochs."""
    storage, clock = MemoryStorage(), ManualClock()
    manager = LogManager(
        [LOG_DIR], config, storage=storage, clock=clock, owner=ManagerOwner(run_later=run_inline)
    )
    log = manager.create_topic("orders", 1)[0]
    fill(log, clock, batches, random.Random(seed), transactions, tuple(codecs))
    manager.housekeeper.checkpoint_recovery_points()
    manager.housekeeper.checkpoint_high_watermarks()
    if clean:
        manager.close()
    else:
        manager.crash()
    return storage


def copy(source: Storage, path: str, target: Storage, to: str) -> None:
    target.make_dir(to)
    for entry in source.scan_dir(path):
        if entry.is_dir:
            copy(source, f"{path}/{entry.name}", target, f"{to}/{entry.name}")
        else:
            target.write_file(f"{to}/{entry.name}", source.read_file(f"{path}/{entry.name}"))


def fill(
    log: PartitionLog,
    clock: ManualClock,
    batches: int,
    rng: random.Random,
    transactions: bool = False,
    codecs: tuple[str, ...] = ("none",),
) -> None:
    epoch = max(log.epochs.latest, 3)
    producers = Producers(log, clock)
    for number in range(batches):
        if number % 17 == 16:
            epoch += rng.choice((1, 2, 7))
            log.epochs.assign(epoch)
        clock.advance(10)
        if transactions and rng.random() < 0.6:
            producers.step(rng, epoch)
            continue
        records = [
            (b"k%d" % n, rng.randbytes(rng.randint(0, 60)), clock.wall_ms() - rng.randint(0, 99))
            for n in range(rng.randint(1, 5))
        ]
        log.append(records, leader_epoch=epoch, compression=rng.choice(codecs))


class Producers:
    """Three producers whose transactions overlap, end either way, or stay open."""

    def __init__(self, log: PartitionLog, clock: ManualClock) -> None:
        self.log, self.clock = log, clock
        known = log.producers.known.producers
        self.sequences = {
            i: known[i].last_sequence + 1 if i in known else 0 for i in (4000, 4001, 4002)
        }
        self.open = {i for i, entry in known.items() if entry.current_txn_first_offset >= 0}

    def step(self, rng: random.Random, epoch: int) -> None:
        producer_id = rng.choice(sorted(self.sequences))
        if producer_id in self.open and rng.random() < 0.5:
            self.end(producer_id, rng.choice((ControlType.ABORT, ControlType.COMMIT)), epoch)
        else:
            self.write(producer_id, rng.randint(1, 3), epoch)

    def write(self, producer_id: int, count: int, epoch: int) -> None:
        batch = encode_batch(
            [(b"key", b"value", self.clock.wall_ms())] * count,
            producer_id=producer_id,
            producer_epoch=1,
            base_sequence=self.sequences[producer_id],
            transactional=True,
        )
        self.log.append_as_leader(batch, epoch)
        self.sequences[producer_id] += count
        self.open.add(producer_id)

    def end(self, producer_id: int, how: ControlType, epoch: int) -> None:
        marker = end_transaction_marker(
            how,
            producer_id=producer_id,
            producer_epoch=1,
            coordinator_epoch=2,
            timestamp=self.clock.wall_ms(),
        )
        self.log.append_as_leader(marker, epoch, AppendOrigin.COORDINATOR)
        self.open.discard(producer_id)


def check(storage: Storage, path: str = LOG_DIR, **options: object) -> VerifyReport:
    return verify([path], VerifyOptions(threads=1, **options), storage=storage)  # type: ignore[arg-type]


def short(report: VerifyReport) -> list[tuple[str, str, str]]:
    """``(severity, rule, file name)`` of each finding; infos left out."""
    return [
        (str(finding.severity), finding.rule, finding.file.rsplit("/", 1)[-1])
        for finding in report.findings
        if finding.severity is not Severity.INFO
    ]


DAMAGE = ("gone", "bare", "emptied", "flipped", "zeroed", "torn", "length", "index", "dropped")


def harm(storage: Storage, path: str, kind: str, at: float) -> None:
    """Damage a segment, if it is as it was, about as far in as ``at`` says, from 0 to 1."""
    data = storage.read_file(path)
    found = list(iter_batches(data))
    chosen = found[int(at * len(found))]
    start, end = chosen.position, chosen.end_position
    index, times = (path.replace(".log", suffix) for suffix in (".index", ".timeindex"))
    match kind:
        case "gone":
            storage.remove(path)
        case "bare":
            for name in (path, index, times):
                storage.remove(name)
        case "emptied":
            storage.write_file(path, b"")
        case "flipped":
            patch(storage, path, end - 5, bytes([data[end - 5] ^ 255]))
        case "zeroed":  # into the header of a batch behind it, maybe
            patch(storage, path, start, bytes(min(600, len(data) - start)))
        case "torn":
            storage.write_file(path, data[: (start + end) // 2])
        case "length":
            patch(storage, path, start + 8, b"\x00\x00\x7f\x00")
        case "index":
            storage.write_file(index, b"\x7f" * 8 + storage.read_file(index)[8:])
        case "dropped":
            storage.write_file(path, data[:start] + data[end:])
            for name in (index, times):
                storage.write_file(name, b"")


def names(storage: Storage, suffix: str, directory: str = PARTITION) -> list[str]:
    """Paths of the files with a suffix that are not empty, by name."""
    return [
        f"{directory}/{file.name}"
        for file in storage.scan_dir(directory)
        if file.name.endswith(suffix) and file.size
    ]


def patch(storage: Storage, path: str, position: int, data: bytes) -> None:
    file = storage.open(path)
    file.write_at(position, data)
    file.close()


def cut(storage: Storage, path: str, size: int) -> None:
    """To ``size`` bytes, or by so many when negative."""
    file = storage.open(path)
    file.truncate(size if size >= 0 else file.size() + size)
    file.close()


def state_of(storage: Storage, path: str = LOG_DIR) -> dict[str, tuple[int, int, int]]:
    """Name -> size, checksum and modification time of every file below ``path``."""
    found = {}
    for entry in storage.scan_dir(path):
        below = f"{path}/{entry.name}"
        if entry.is_dir:
            found |= state_of(storage, below)
        else:
            found[below] = (entry.size, zlib.crc32(storage.read_file(below)), entry.mtime_ms)
    return found


__all__ = [
    "CODECS",
    "LOG_DIR",
    "PARTITION",
    "SMALL",
    "Compression",
    "check",
    "cut",
    "fill",
    "log_dir",
    "names",
    "patch",
    "short",
    "state_of",
]
