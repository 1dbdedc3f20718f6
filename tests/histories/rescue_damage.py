"""Damage of every kind to the log directories of several brokers, chosen by a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from logstore.storage.base import Storage

PREFIX = 12
MAGIC_AT, EPOCH_AT, LENGTH_AT = 16, 12, 8


class Place(NamedTuple):
    """A file to damage, and other brokers' files of the same name."""

    storage: Storage
    path: str
    others: tuple[str, ...] = ()

    def read(self) -> bytearray:
        return bytearray(self.storage.read_file(self.path))

    def write(self, data: bytes) -> None:
        self.storage.write_file(self.path, bytes(data))


Kind = Callable[[random.Random, Place], None]


def batches(data: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of each batch, as far as the framing holds."""
    at = 0
    while at + 61 <= len(data):
        size = PREFIX + int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
        if size < 61 or at + size > len(data):
            return
        yield at, at + size
        at += size


def _batch(rng: random.Random, data: bytes) -> tuple[int, int] | None:
    found = list(batches(data))
    return rng.choice(found) if found else None


def flip_a_bit(rng: random.Random, place: Place) -> None:
    data = place.read()
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        place.write(data)


def zero_a_range(rng: random.Random, place: Place) -> None:
    data = place.read()
    if data:
        start = rng.randrange(len(data))
        end = min(start + rng.choice((1, 16, 200, 512)), len(data))
        data[start:end] = bytes(end - start)
        place.write(data)


def cut_the_tail(rng: random.Random, place: Place) -> None:
    data = place.read()
    place.write(data[: max(len(data) - rng.randrange(1, 400), 0)])


def delete_it(rng: random.Random, place: Place) -> None:
    place.storage.remove(place.path)


def double_a_batch(rng: random.Random, place: Place) -> None:
    data = place.read()
    found = _batch(rng, data)
    if found is not None:
        start, end = found
        data[end:end] = data[start:end]
        place.write(data)


def _flip_in_header(rng: random.Random, place: Place, at: int, size: int) -> None:
    data = place.read()
    found = _batch(rng, data)
    if found is not None:
        data[found[0] + at + rng.randrange(size)] ^= 1 << rng.randrange(8)
        place.write(data)


def flip_a_base_offset(rng: random.Random, place: Place) -> None:
    _flip_in_header(rng, place, 0, 8)


def flip_an_epoch(rng: random.Random, place: Place) -> None:
    _flip_in_header(rng, place, EPOCH_AT, 4)


def flip_a_length(rng: random.Random, place: Place) -> None:
    _flip_in_header(rng, place, LENGTH_AT, 4)


def flip_a_magic(rng: random.Random, place: Place) -> None:
    _flip_in_header(rng, place, MAGIC_AT, 1)


def swap_two_batches(rng: random.Random, place: Place) -> None:
    data = place.read()
    found = list(batches(data))
    if len(found) > 1:
        at = rng.randrange(len(found) - 1)
        (start, middle), (_, end) = found[at], found[at + 1]
        data[start:end] = data[middle:end] + data[start:middle]
        place.write(data)


def swap_with_another_broker(rng: random.Random, place: Place) -> None:
    others = [path for path in place.others if place.storage.info(path) is not None]
    if others:
        other = place._replace(path=rng.choice(others))
        mine, theirs = place.read(), other.read()
        place.write(theirs)
        other.write(mine)


def overwrite_with_noise(rng: random.Random, place: Place) -> None:
    data = place.read()
    if data:
        start = rng.randrange(len(data))
        end = min(start + rng.randrange(1, 300), len(data))
        data[start:end] = rng.randbytes(end - start)
        place.write(data)


LOG_KINDS: tuple[Kind, ...] = (
    flip_a_bit,
    flip_a_bit,
    zero_a_range,
    cut_the_tail,
    delete_it,
    double_a_batch,
    flip_a_base_offset,
    flip_an_epoch,
    flip_a_length,
    flip_a_magic,
    swap_two_batches,
    swap_with_another_broker,
    overwrite_with_noise,
)
SMALL_KINDS: tuple[Kind, ...] = (flip_a_bit, zero_a_range, delete_it, cut_the_tail)
IDENTITY = ("partition.metadata", "meta.properties", "topic.properties")


def places(storage: Storage, brokers: list[str]) -> list[tuple[Place, tuple[Kind, ...]]]:
    """Every file that may be damaged, with the kinds of damage for it."""
    found: list[tuple[Place, tuple[Kind, ...]]] = []
    for broker in brokers:
        for name in _files(storage, broker, ""):
            others = tuple(f"{other}/{name}" for other in brokers if other != broker)
            kinds = LOG_KINDS if name.endswith(".log") else SMALL_KINDS
            if not name.endswith(IDENTITY):
                found.append((Place(storage, f"{broker}/{name}", others), kinds))
    return found


def _files(storage: Storage, root: str, below: str) -> Iterator[str]:
    for entry in storage.scan_dir(f"{root}/{below}" if below else root):
        name = f"{below}/{entry.name}" if below else entry.name
        if entry.is_dir:
            yield from _files(storage, root, name)
        else:
            yield name


def damage(rng: random.Random, storage: Storage, brokers: list[str], count: int) -> list[str]:
    """Damage ``count`` places, most of them in logs; what was done, in lines."""
    done: list[str] = []
    for _ in range(count):
        found = places(storage, brokers)
        logs = [each for each in found if each[0].path.endswith(".log")]
        place, kinds = rng.choice(logs if logs and rng.random() < 0.8 else found)
        kind = rng.choice(kinds)
        kind(rng, place)
        done.append(f"{kind.__name__} {place.path}")
    return done
