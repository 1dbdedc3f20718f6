"""Healthy log directories, drawn by number, whose every batch is known.

Half of them were closed in order, the others are images of a crash. The last ones hold segments
that a real Kafka wrote (``tests/golden``).
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from logstore.common.config import LogConfig
from logstore.format.batch import encode_batch, end_transaction_marker
from logstore.format.codecs.compression import Compression
from logstore.format.control import ControlType
from logstore.format.reader import batch_records, iter_batches
from logstore.log import PartitionLog
from logstore.manager import LogManager, ManagerOwner
from logstore.segments.producer_state import AppendOrigin
from logstore.testing import ManualClock
from tests.fuzz.tree import DIRECTORY, Tree, file_of, read_tree

GOLDEN = Path(__file__).parent.parent / "golden" / "data"
GOLDEN_SEGMENTS = (
    "v2-none",
    "v2-txn",
    "v2-lz4",
    "v2-zstd",
    "v2-compacted-none",
    "v1-snappy",
    "v1-none",
    "v0-gzip",
)
OWN = 32
COUNT = OWN + len(GOLDEN_SEGMENTS)
CODECS = (Compression.NONE, Compression.NONE, *Compression)
TOPICS = ("orders", "a.b_c-d", "payments", "x")
CLEAN_MARKER = ".kafka_cleanshutdown"
_PREFIX = struct.Struct(">qi4xb")


class Row(NamedTuple):
    """What a record says; control records are rows too."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Any, ...]


class Known(NamedTuple):
    """A batch as it was written. ``kept`` is what its checksum covers, and the checksum."""

    partition: str
    base: int
    last: int
    data: bytes
    rows: tuple[Row, ...]

    @property
    def kept_from(self) -> int:
        return 17 if self.data[16] == 2 else 12

    @property
    def kept(self) -> bytes:
        return self.data[self.kept_from :]

    def is_at(self, data: bytes, position: int) -> bool:
        """Whether the batch begins at ``position``, going by length and magic alone."""
        return data[position + 8 : position + 12] == self.data[8:12] and (
            self.kept_from == 12 or data[position + 16 : position + 17] == self.data[16:17]
        )

    def positions(self, data: bytes) -> Iterator[int]:
        """Where in ``data`` the batch lies whole, whatever its base offset and leader epoch."""
        at = data.find(self.kept)
        while at >= 0:
            position = at - self.kept_from
            if position >= 0 and self.is_at(data, position):
                yield position
            at = data.find(self.kept, at + 1)


@dataclass(slots=True)
class Original:
    number: int
    tree: Tree
    batches: list[Known]
    starts: dict[str, int]
    """The log start offset of each partition."""
    clean: bool
    baseline: frozenset[str] = frozenset()
    """Findings of ``verify`` before any mutation."""
    extras: list[str] = field(default_factory=list)

    @property
    def partitions(self) -> list[str]:
        return sorted(self.starts)


@cache
def original(number: int) -> Original:
    """The same for the same number, in every process."""
    rng = random.Random(f"original {number}")
    if number < OWN:
        return _own(number, rng, clean=number % 2 == 0)
    return _golden(number, GOLDEN_SEGMENTS[number - OWN], clean=rng.random() < 0.5)


def known_batches(partition: str, data: bytes) -> list[Known]:
    found = []
    for batch in iter_batches(data):
        raw = data[batch.position : batch.end_position]
        rows = tuple(row_of(record) for record in batch_records(data, batch))
        base, last = batch.base_offset, max(batch.base_offset, batch.last_offset)
        found.append(Known(partition, base, last, raw, rows))
    return found


def row_of(record: Any) -> Row:
    return Row(
        record.offset, record.timestamp, record.key, record.value, tuple(map(tuple, record.headers))
    )


# -- written by us ---------------------------------------------------------------------------------


def _own(number: int, rng: random.Random, *, clean: bool) -> Original:
    with tempfile.TemporaryDirectory() as work:
        root = os.path.join(work, "d")
        os.mkdir(root)
        writer = _Writer(root, rng)
        tree = writer.close() if clean else writer.crash()
    partitions = sorted(writer.logs)
    known = [
        batch
        for name in partitions
        for path in sorted(p for p in tree if p.startswith(name + "/") and ".log" in p)
        for batch in known_batches(name, tree[path].data)
    ]
    made = Original(number, tree, known, writer.starts, clean)
    for add in rng.sample([_add_deleted, _add_delete_directory, _add_torn_tail, _add_stray], 2):
        add(made, rng)
    return made


class _Writer:
    """Work of a broker on one directory, without a thread: all follows from ``rng``."""

    def __init__(self, root: str, rng: random.Random) -> None:
        self.rng, self.root, self.clock = rng, root, ManualClock()
        self.rolled: list[Callable[[], None]] = []
        self.starts: dict[str, int] = {}
        self.logs: dict[str, PartitionLog] = {}
        self.epochs: dict[str, int] = {}
        config = LogConfig(
            segment_bytes=rng.choice((1500, 3000, 6000)),
            index_interval_bytes=rng.choice((0, 256, 1024)),
            segment_index_bytes=rng.choice((240, 1200, 4096)),
            retention_ms=-1,
            flush_messages=rng.choice((20, 2**40)),
        )
        self.manager = LogManager(
            [root],
            config,
            clock=self.clock,
            background=False,
            owner=ManagerOwner(
                run_later=self.rolled.append,
                cluster_id="fuzzed-cluster",
                random_id=lambda: f"{rng.getrandbits(128):032x}",
            ),
        )
        for topic in rng.sample(TOPICS, rng.randint(1, 3)):
            own = {"segment.bytes": "2000"} if rng.random() < 0.3 else None
            log = self.manager.get_or_create(topic, rng.choice((0, 0, 7)), config=own)
            self.logs[log.name] = log
            self.epochs[log.name] = rng.choice((0, 3))
        for _ in range(rng.randint(20, 70)):
            self._step(rng.choice(sorted(self.logs)))
        self.starts = {name: log.log_start_offset for name, log in self.logs.items()}

    def close(self) -> Tree:
        for task in self.rolled:
            task()
        self.manager.close()
        return read_tree(self.root)

    def crash(self) -> Tree:
        """What a crash leaves: indexes with room, rolls under their first name, no marker."""
        image = self.root + "-image"
        shutil.copytree(self.root, image)
        self.manager.crash()
        return read_tree(image)

    def _step(self, name: str) -> None:
        rng, log = self.rng, self.logs[name]
        self.clock.advance(rng.randint(0, 2000))
        chosen = rng.random()
        if chosen < 0.5:
            log.append(self._records(), leader_epoch=self._epoch(name), compression=self._codec())
        elif chosen < 0.65:
            log.producer(rng.choice((1, 2, "named"))).append(
                self._records(), compression=self._codec()
            )
        elif chosen < 0.85:
            self._transaction(log, name)
        elif chosen < 0.9:
            log.flush()
        elif chosen < 0.94:
            self.manager.housekeeper.checkpoint_recovery_points()
            self.manager.housekeeper.checkpoint_high_watermarks()
        elif chosen < 0.96 and log.log_end_offset > 10:
            log.delete_records(rng.randint(log.log_start_offset, log.log_end_offset // 2 + 1))
            self.manager.housekeeper.checkpoint_log_start_offsets()
        elif self.rolled:
            self.rolled.pop(0)()

    def _epoch(self, name: str) -> int:
        self.epochs[name] += self.rng.random() < 0.1
        return self.epochs[name]

    def _codec(self) -> Compression:
        return self.rng.choice(CODECS)

    def _records(self) -> list[tuple[bytes | None, bytes | None, int, list[Any]]]:
        rng = self.rng
        return [
            (
                rng.choice((None, f"key-{rng.getrandbits(32)}".encode())),
                rng.choice(("word ", "")).encode() * 5 + f"{rng.getrandbits(200):x}".encode(),
                self.clock.wall_ms() - rng.randint(0, 500),
                [("header", f"{rng.getrandbits(16):x}".encode())] * (rng.random() < 0.2),
            )
            for _ in range(rng.randint(1, 6))
        ]

    def _transaction(self, log: PartitionLog, name: str) -> None:
        """One more batch of a transaction, or its end."""
        rng = self.rng
        producer = rng.choice((100, 101))
        entry = log.producers.known.producers.get(producer)
        epoch = self._epoch(name)
        if entry is not None and entry.current_txn_first_offset >= 0 and rng.random() < 0.4:
            marker = end_transaction_marker(
                rng.choice((ControlType.COMMIT, ControlType.ABORT)),
                producer_id=producer,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp=self.clock.wall_ms(),
            )
            log.append_as_leader(marker, epoch, AppendOrigin.COORDINATOR)
            return
        sequence = 0 if entry is None else entry.last_sequence + 1
        data = encode_batch(
            self._records(),
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
            compression=self._codec(),
        )
        log.append_as_leader(data, epoch)


# -- what else lies in a directory -----------------------------------------------------------------


def _add_deleted(made: Original, rng: random.Random) -> None:
    name = rng.choice(made.partitions)
    logs = [path for path in made.tree if path.startswith(name + "/") and path.endswith(".log")]
    path = f"{rng.choice(sorted(logs))}.deleted" if logs else f"{name}/{0:020}.log.deleted"
    made.tree[path] = file_of(b"old bytes" * 20)


def _add_delete_directory(made: Original, rng: random.Random) -> None:
    directory = f"gone-0.{rng.getrandbits(128):032x}-delete"
    made.tree[directory] = DIRECTORY
    made.tree[f"{directory}/{0:020}.log"] = file_of(bytes(64))


def _add_stray(made: Original, rng: random.Random) -> None:
    directory = f"odd-0.{rng.getrandbits(128):032x}-stray"
    made.tree[directory] = DIRECTORY
    made.tree[f"{directory}/{0:020}.log"] = file_of(bytes(64))


def _add_torn_tail(made: Original, rng: random.Random) -> None:
    """The start of a batch, or zeros, behind the last whole batch of a log."""
    name = rng.choice(made.partitions)
    logs = sorted(
        p for p in made.tree if p.startswith(name + "/") and p.endswith((".log", ".swap"))
    )
    if made.clean or not logs:
        return
    torn = rng.choice(made.batches).data
    tail = (
        bytes(rng.randint(1, 200)) if rng.random() < 0.5 else torn[: rng.randint(1, len(torn) - 1)]
    )
    entry = made.tree[logs[-1]]
    made.tree[logs[-1]] = entry.holding(entry.data + tail)


# -- written by Kafka ------------------------------------------------------------------------------


def _golden(number: int, segment: str, *, clean: bool) -> Original:
    name = f"{segment}-0"
    tree: Tree = {name: DIRECTORY}
    for source in sorted((GOLDEN / segment).iterdir()):
        if source.suffix not in (".jsonl", ".json"):
            tree[f"{name}/{source.name}"] = file_of(source.read_bytes())
    path = next(path for path in tree if path.endswith(".log"))
    known = known_batches(name, tree[path].data)
    base, end = int(Path(path).stem), known[-1].last + 1
    tree["meta.properties"] = file_of(b"#\nversion=0\nbroker.id=0\ncluster.id=golden\n")
    tree["recovery-point-offset-checkpoint"] = file_of(f"0\n1\n{segment} 0 {end}\n".encode())
    if clean:
        tree[CLEAN_MARKER] = file_of(b'{"version":0,"brokerEpoch":25}')
    return Original(number, tree, known, {name: base}, clean)
