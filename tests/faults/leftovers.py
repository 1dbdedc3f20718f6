"""Files that a start puts in the place of others, or deletes, though it should not; and files that
changed places."""

from __future__ import annotations

import random

from logstore.format import filenames
from tests.faults.indexes import INDEX, TIME, TXN, with_entries
from tests.faults.planter import Fault, choose, fault, kind
from tests.faults.site import Replica, Segment, Site, patched, replace

LOG = filenames.LOG_SUFFIX
_GONE = (
    "log-offset-order index-without-log index-entry timeindex-entry txnindex-offsets "
    "txnindex-entries snapshot-form snapshot-producer snapshot-transaction snapshot-missing "
    "snapshot-above-log timeindex-last-entry epochs-range recovery-point high-watermark log-epoch "
    "log-start-offset producer-sequence producer-epoch"
)


def _inner(site: Site) -> list[Segment]:
    """Segments of several batches with others on both sides, in logs never compacted."""
    return [
        segment
        for replica in site.filled()
        if not replica.compacted
        for segment in replica.segments[1:-1]
        if len(segment.batches()) > 2
    ]


def _swap(segment: Segment, base: int, data: bytes) -> str:
    """The files of a replacement; its index tells it from a roll."""
    storage = segment.replica.storage
    for suffix, content in ((LOG, data), (INDEX, b""), (TIME, b"")):
        name = filenames.segment_file_name(base, suffix, filenames.SWAP_SUFFIX)
        storage.write_file(segment.replica.file(name), content)
    return segment.replica.file(filenames.segment_file_name(base, LOG, filenames.SWAP_SUFFIX))


@kind()
def swap_damaged(site: Site, rng: random.Random) -> Fault:
    """A bit of the replacement; the segment that it replaces is whole."""
    segment = choose(rng, _inner(site))
    batch = choose(rng, segment.batches()[:-1])
    at = rng.randrange(batch.position + 61, batch.end_position)
    data = segment.read(LOG)
    path = _swap(segment, segment.base, patched(data, at, bytes([data[at] ^ 4])))
    return fault(segment.replica, f"byte {at} of {path}", [path], "leftover", "log-checksum")


@kind()
def swap_torn(site: Site, rng: random.Random) -> Fault:
    segment = choose(rng, _inner(site))
    data = segment.read(LOG)
    path = _swap(segment, segment.base, data[: -rng.randrange(1, 40)])
    return fault(segment.replica, f"{path} is cut", [path], "leftover")


@kind()
def swap_short(site: Site, rng: random.Random) -> Fault:
    """It ends at a batch, before what it replaces."""
    segment = choose(rng, _inner(site))
    end = choose(rng, segment.batches()[:-1]).end_position
    path = _swap(segment, segment.base, segment.read(LOG)[:end])
    return fault(segment.replica, f"{path} ends at {end}", [path], "leftover")


@kind()
def swap_inside_a_segment(site: Site, rng: random.Random) -> Fault:
    """The segment that it came from begins before it, and stays."""
    segment = choose(rng, _inner(site))
    batch = choose(rng, segment.batches()[1:])
    path = _swap(segment, batch.base_offset, segment.read(LOG)[batch.position :])
    return fault(segment.replica, f"{path} of {segment.base}", [path], "leftover")


@kind()
def swaps_around_a_segment(site: Site, rng: random.Random) -> Fault:
    """A start deletes what is between them."""
    found = [
        (replica, number)
        for replica in site.filled()
        if not replica.compacted
        for number in range(len(replica.segments) - 2)
    ]
    replica, number = choose(rng, found)
    one, between, two = replica.segments[number : number + 3]
    for segment in (one, two):
        _swap(segment, segment.base, segment.read(LOG))
    told = f".swap files of {one.base} and {two.base} in {replica.path}"
    return fault(replica, told, [between.file(LOG)], "leftover")


def _deleted(segment: Segment, told: str, files: list[str]) -> Fault:
    storage = segment.replica.storage
    name = filenames.segment_file_name(segment.base, LOG, filenames.DELETED_SUFFIX)
    path, data = segment.replica.file(name), segment.read(LOG)
    for suffix in filenames.SEGMENT_SUFFIXES:
        if storage.info(segment.file(suffix)) is not None:
            storage.remove(segment.file(suffix))
    storage.write_file(path, data)
    return fault(segment.replica, f"{path} {told}", [path, *files], "leftover", _GONE)


@kind()
def deleted_in_the_middle(site: Site, rng: random.Random) -> Fault:
    return _deleted(choose(rng, _inner(site)), "is the only one", [])


@kind()
def deleted_at_the_end(site: Site, rng: random.Random) -> Fault:
    """Though a checkpoint promises it."""
    found = [
        replica.segments[-1]
        for replica in site.filled()
        if len(replica.segments) > 1 and replica.kept_below > replica.segments[-1].base
    ]
    return _deleted(choose(rng, found), "was the last one", [])


# -- files in the place of others ----------------------------------------------------------------


def _exchanged(site: Site, rng: random.Random, suffix: str, rules: str, along: str) -> Fault:
    found: dict[str, list[Segment]] = {}
    for segment, _ in with_entries(site, suffix):
        found.setdefault(segment.replica.path, []).append(segment)
    segments = choose(rng, [each for each in found.values() if len(each) > 1])
    one, two = rng.sample(segments, 2)
    first, second = one.read(suffix), two.read(suffix)
    replace(one.replica.storage, one.file(suffix), second)
    replace(two.replica.storage, two.file(suffix), first)
    told = f"{one.file(suffix)} and {two.file(suffix)} changed places"
    files = [one.file(suffix), two.file(suffix)]
    return fault(one.replica, told, files, rules, along, differs=False)


@kind()
def indexes_exchanged(site: Site, rng: random.Random) -> Fault:
    return _exchanged(site, rng, INDEX, "index-entry index-order", "too-large")


@kind()
def time_indexes_exchanged(site: Site, rng: random.Random) -> Fault:
    return _exchanged(
        site, rng, TIME, "timeindex-entry timeindex-order", "timeindex-last-entry index-entry"
    )


@kind()
def transaction_indexes_exchanged(site: Site, rng: random.Random) -> Fault:
    return _exchanged(site, rng, TXN, "txnindex-entries txnindex-offsets", "txnindex-form")


@kind()
def segment_under_a_lower_name(site: Site, rng: random.Random) -> Fault:
    """Its offsets begin above its name, and the one before reaches into it."""
    segment = choose(rng, _inner(site))
    storage, replica = segment.replica.storage, segment.replica
    base = segment.base - 1
    for suffix in (LOG, INDEX, TIME, TXN):
        if storage.info(segment.file(suffix)) is not None:
            data = segment.read(suffix)
            storage.remove(segment.file(suffix))
            storage.write_file(replica.file(filenames.segment_file_name(base, suffix)), data)
    files = [one.file(LOG) for one in Replica(replica.log_dir, replica.tp, replica.path).segments]
    return fault(replica, f"{segment.file(LOG)} is {base}", files, "log-offset-order", _GONE)


@kind()
def index_that_is_a_directory(site: Site, rng: random.Random) -> Fault:
    segment = choose(rng, [one for one in site.segments() if one.has(LOG) and one.settled])
    suffix = rng.choice((INDEX, TIME))
    path = segment.file(suffix)
    if segment.replica.storage.info(path) is not None:
        segment.replica.storage.remove(path)
    segment.replica.storage.make_dir(path)
    return fault(segment.replica, f"{path} is a directory", [path], "not-a-file", differs=False)
