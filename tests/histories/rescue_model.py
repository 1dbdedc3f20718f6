"""What a rescue must bring back, said without any of its code: by looking for bytes.

A batch is *intact* in a replica if all its bytes lie in one of its files. Else one of the header
fields that no checksum covers may be wrong: then mending it is welcome where its neighbours prove
what it was, and it may be lost, which must be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from logstore.storage.base import Storage
from tests.histories.rescue_damage import batches

_CRC_AT = 17


class Batch(NamedTuple):
    first: int
    next: int
    epoch: int
    data: bytes

    @property
    def content(self) -> bytes:
        return self.data[_CRC_AT:]


def read_log(storage: Storage, directory: str) -> list[Batch]:
    """The batches of an undamaged partition directory."""
    names = sorted(e.name for e in storage.scan_dir(directory) if e.name.endswith(".log"))
    return [batch for name in names for batch in _parsed(storage.read_file(f"{directory}/{name}"))]


def _parsed(data: bytes) -> Iterator[Batch]:
    for start, end in batches(data):
        one = data[start:end]
        base, delta = int.from_bytes(one[:8], "big"), int.from_bytes(one[23:27], "big")
        yield Batch(base, base + delta + 1, int.from_bytes(one[12:16], "big"), one)


class Damaged(NamedTuple):
    """What is left of one partition on all brokers."""

    logs: tuple[tuple[bytes, ...], ...]
    epoch_files: tuple[bytes | None, ...]

    def intact(self, batch: Batch) -> bool:
        return any(batch.data in data for logs in self.logs for data in logs)


def read_damaged(storage: Storage, directories: Iterable[str]) -> Damaged:
    logs, epochs = [], []
    for directory in directories:
        names = [e.name for e in storage.scan_dir(directory) if e.name.endswith(".log")]
        logs.append(tuple(storage.read_file(f"{directory}/{name}") for name in names))
        path = f"{directory}/leader-epoch-checkpoint"
        epochs.append(storage.read_file(path) if storage.info(path) else None)
    return Damaged(tuple(logs), tuple(epochs))


class Truth(NamedTuple):
    """One partition before the damage: ``batches`` of the committed history, and ``strays`` that a
    later epoch replaced. ``epoch_files`` of all brokers."""

    batches: tuple[Batch, ...]
    strays: tuple[Batch, ...]
    epoch_files: tuple[bytes, ...]

    @property
    def last_epoch(self) -> int:
        return self.batches[-1].epoch

    @property
    def parting(self) -> int:
        """The first offset that the brokers disagree about."""
        return min((stray.first for stray in self.strays), default=2**63)

    def knows_the_end(self, damaged: Damaged) -> bool:
        """Whether anything proves that the last epoch was there: an epoch file that has it, or two
        of its batches, one after the other."""
        of_files = zip(self.epoch_files, damaged.epoch_files, strict=True)
        entry = f"\n{self.last_epoch} ".encode()
        if any(before == after and entry in before for before, after in of_files):
            return True
        last = [batch for batch in self.batches if batch.epoch == self.last_epoch]
        pairs = [a.data + b.data for a, b in pairwise(last)]
        return any(pair in data for pair in pairs for logs in damaged.logs for data in logs)


def problems(
    truth: Truth, damaged: Damaged, result: list[Batch], gaps: list[tuple[int, int]]
) -> Iterator[str]:
    """How a result breaks its promise, in lines.

    Args:
        gaps: offsets ``[first, next)`` that were told to be missing.
    """
    yield from _order(result)
    certain = truth.knows_the_end(damaged)
    limit = 2**63 if certain else truth.parting
    wanted = [b for b in truth.batches if b.next <= limit]
    known = {(b.first, b.content) for b in truth.batches}
    if not certain:
        known |= {(b.first, b.content) for b in truth.strays}
    for batch in result:
        if (batch.first, batch.content) not in known:
            yield f"served what was never committed: offsets [{batch.first}, {batch.next})"
    there = {(b.first, b.content) for b in result}
    for batch in wanted:
        if (batch.first, batch.content) in there:
            continue
        if damaged.intact(batch):
            yield f"lost: offsets [{batch.first}, {batch.next}), which a replica holds"
        elif not _covered(batch, gaps):
            yield f"missing and not told: offsets [{batch.first}, {batch.next})"
    for first, end in gaps:
        for batch in result:
            if batch.first < end and first < batch.next:
                yield f"told as missing and there: [{batch.first}, {batch.next})"


def _order(result: list[Batch]) -> Iterator[str]:
    for one, other in pairwise(result):
        if other.first < one.next:
            yield f"out of order: [{one.first}, {one.next}) before [{other.first}, {other.next})"


def _covered(batch: Batch, gaps: list[tuple[int, int]]) -> bool:
    return any(first <= batch.first and batch.next <= end for first, end in gaps)
