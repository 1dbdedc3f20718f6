"""A log of which a tier has the older part, in directories that a test cuts as it wants."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from logstore.common.config import LogConfig
from logstore.log import PartitionLog, run_inline
from logstore.manager import LogManager, ManagerOwner
from logstore.testing import ManualClock
from tests.unit.verify.verify_logs import CODECS, fill

TOPIC = "orders"


@contextmanager
def one_log(path: Path, segment_bytes: int = 6000) -> Iterator[tuple[PartitionLog, ManualClock]]:
    clock = ManualClock()
    config = LogConfig(
        segment_bytes=segment_bytes,
        index_interval_bytes=500,
        segment_index_bytes=4096,
        retention_ms=-1,
    )
    owner = ManagerOwner(run_later=run_inline)
    manager = LogManager([str(path)], config, clock=clock, owner=owner)
    if not (path / f"{TOPIC}-0").exists():
        manager.create_topic(TOPIC, 1)
    log = manager.get_or_create(TOPIC, 0)
    yield log, clock
    manager.housekeeper.checkpoint_high_watermarks()
    manager.close()


class Tiered:
    """One history, three directories: ``whole``, ``local`` and ``tier``.

    Segments of the tier are cut elsewhere, as another leader would have copied them.
    """

    def __init__(
        self,
        root: Path,
        *,
        batches: int = 150,
        transactions: bool = False,
        tier_segment: int = 9000,
    ) -> None:
        self.whole, self.local, self.tier = (root / name for name in ("whole", "local", "tier"))
        with one_log(self.whole) as (log, clock):
            fill(log, clock, batches, random.Random(7), transactions, CODECS)
            self.end = log.log_end_offset
        shutil.copytree(self.whole, self.local)
        with one_log(self.tier, tier_segment) as (log, _):
            for data in batches_of(self.whole):
                log.replica.append_as_follower(data)
        for directory in (self.local, self.tier):
            shutil.copy(
                self.partition(self.whole) / "partition.metadata", self.partition(directory)
            )

    @staticmethod
    def partition(directory: Path) -> Path:
        return directory / f"{TOPIC}-0"

    @contextmanager
    def appending(self, directory: Path) -> Iterator[Callable[[int], None]]:
        """A function that appends so many records of one batch each."""
        with one_log(directory) as (log, clock):

            def append(count: int) -> None:
                for number in range(count):
                    record = (b"later", b"%d" % number, clock.wall_ms())
                    log.append([record], leader_epoch=log.epochs.latest)

            yield append

    def bases(self, directory: Path) -> list[int]:
        return sorted(int(path.stem) for path in self.partition(directory).glob("*.log"))

    def retain_locally(self, base: int) -> None:
        """Delete local segments below ``base``, as retention does."""
        self._delete(self.local, lambda found: found < base)

    def end_tier_at(self, base: int) -> None:
        """Leave segments of the tier below ``base``."""
        self._delete(self.tier, lambda found: found >= base)

    def _delete(self, directory: Path, wanted: Callable[[int], bool]) -> None:
        for path in self.partition(directory).iterdir():
            if path.suffix == ".snapshot":
                continue  # of the offset behind a segment
            if path.stem.isdigit() and wanted(int(path.stem)):
                path.unlink()


def batches_of(directory: Path) -> Iterator[bytes]:
    """The batches of the one partition, as they lie on the disk."""
    for path in sorted(Tiered.partition(directory).glob("*.log")):
        data = path.read_bytes()
        while data:
            size = 12 + int.from_bytes(data[8:12], "big")
            yield data[:size]
            data = data[size:]
