"""Headers of batches that say under a right checksum what no writer says: a table, a row a kind."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tests.faults.planter import Fault, choose, fault, register
from tests.faults.replicas import LOG, sealed
from tests.faults.site import Site, Spot, patched, replace

_I16, _I32, _I64 = (struct.Struct(f">{code}") for code in "hiq")
_ALONG = (
    "timeindex-entry timeindex-order timeindex-last-entry txnindex-offsets txnindex-entries "
    "snapshot-producer snapshot-transaction snapshot-form producer-sequence index-entry "
    "log-offset-order log-producer-epoch log-control-record log-records "
    "log-compression"
)


class _Field(NamedTuple):
    at: int
    layout: struct.Struct

    def of(self, batch: bytes) -> int:
        value: int = self.layout.unpack_from(batch, self.at)[0]
        return value


ATTRIBUTES = _Field(21, _I16)
LAST_DELTA = _Field(23, _I32)
BASE_TIME, MAX_TIME = _Field(27, _I64), _Field(35, _I64)
PRODUCER, EPOCH, SEQUENCE = _Field(43, _I64), _Field(51, _I16), _Field(53, _I32)
COUNT = _Field(57, _I32)
_CODEC, _TRANSACTIONAL, _CONTROL, _HORIZON = 0x07, 0x10, 0x20, 0x40


def _plain(spot: Spot) -> bool:
    return spot.batch.producer_id < 0 and not spot.batch.is_control


def _of_producer(spot: Spot) -> bool:
    return spot.batch.producer_id >= 0 and not spot.batch.is_control


def _marker(spot: Spot) -> bool:
    return spot.batch.is_control


def _uncompressed(spot: Spot) -> bool:
    return spot.batch.compression == 0 and not spot.batch.is_control


def _compressed(spot: Spot) -> bool:
    return spot.batch.compression != 0


def _several(spot: Spot) -> bool:
    return spot.batch.record_count > 1


def _later(spot: Spot) -> bool:
    """With a batch of its producer before, in the same segment: each is read by itself."""
    return spot.batch.producer_id >= 0 and any(
        other.segment.base == spot.segment.base
        and other.batch.producer_id == spot.batch.producer_id
        and other.batch.base_offset < spot.batch.base_offset
        and not other.batch.is_control
        for other in spot.replica.batches
    )


def _any(_: Spot) -> bool:
    return True


Row = tuple[Callable[[Spot], bool], _Field, Callable[[int], int], str]
KINDS: dict[str, Row] = {
    "sequence_without_a_producer": (_plain, SEQUENCE, lambda _: 17, "log-sequence"),
    "impossible_sequence": (_plain, SEQUENCE, lambda _: -5, "log-sequence"),
    "epoch_without_a_producer": (_plain, EPOCH, lambda _: 4, "log-producer-epoch"),
    "impossible_epoch": (_plain, EPOCH, lambda _: -3, "log-producer-epoch"),
    "impossible_producer": (_plain, PRODUCER, lambda _: -7, "log-producer-epoch"),
    "producer_without_an_epoch": (_of_producer, EPOCH, lambda _: -1, "log-producer-epoch"),
    "producer_without_a_sequence": (_of_producer, SEQUENCE, lambda _: -1, "log-sequence"),
    "producer_epoch_falls": (_later, EPOCH, lambda epoch: epoch - 1, "producer-epoch"),
    "marker_with_a_sequence": (_marker, SEQUENCE, lambda _: 3, "log-sequence"),
    "marker_that_is_not_transactional": (
        _marker,
        ATTRIBUTES,
        lambda bits: bits & ~_TRANSACTIONAL,
        "log-transactional",
    ),
    "marker_of_nobody": (_marker, PRODUCER, lambda _: -1, "log-transactional"),
    "marker_as_data": (_marker, ATTRIBUTES, lambda bits: bits & ~_CONTROL, "log-sequence"),
    "data_as_a_marker": (
        _uncompressed,
        ATTRIBUTES,
        lambda bits: bits | _CONTROL,
        "log-control-record",
    ),
    "transaction_of_nobody": (
        _plain,
        ATTRIBUTES,
        lambda bits: bits | _TRANSACTIONAL,
        "log-transactional",
    ),
    "unknown_attribute": (_any, ATTRIBUTES, lambda bits: bits | 0x80, "log-attributes"),
    "attribute_of_the_high_byte": (_any, ATTRIBUTES, lambda b: b | 0x4000, "log-attributes"),
    "delete_horizon": (_uncompressed, ATTRIBUTES, lambda b: b | _HORIZON, "log-attributes"),
    "delete_horizon_of_compressed": (
        _compressed,
        ATTRIBUTES,
        lambda bits: bits | _HORIZON,
        "log-attributes",
    ),
    "codec_of_nobody": (_any, ATTRIBUTES, lambda bits: bits | _CODEC, "log-codec"),
    "codec_claimed": (_uncompressed, ATTRIBUTES, lambda bits: bits | 2, "log-compression"),
    "codec_forgotten": (_compressed, ATTRIBUTES, lambda b: b & ~_CODEC, "log-records"),
    "more_records_than_offsets": (_any, COUNT, lambda count: count + 1, "log-record-count"),
    "fewer_records_than_there_are": (
        _several,
        COUNT,
        lambda count: count - 1,
        "log-records log-compression log-control-record",
    ),
    "negative_record_count": (_any, COUNT, lambda _: -2, "log-record-count log-checksum"),
    "no_records_claimed": (_any, COUNT, lambda _: 0, "log-empty-batch"),
    "offsets_of_the_next_batch": (
        lambda spot: spot.batch.next_offset < spot.replica.end_offset,
        LAST_DELTA,
        lambda delta: delta + 1,
        "log-offset-order log-base-offset",
    ),
    "negative_last_offset": (_any, LAST_DELTA, lambda _: -4, "log-record-count log-checksum"),
    "largest_timestamp_low": (_uncompressed, MAX_TIME, lambda t: t - 1000, "log-max-timestamp"),
    "largest_timestamp_high": (_uncompressed, MAX_TIME, lambda t: t + 9999, "log-max-timestamp"),
    "first_timestamp_negative": (
        _uncompressed,
        BASE_TIME,
        lambda _: -5,
        "log-timestamp log-max-timestamp",
    ),
    "batch_of_another_producer": (
        lambda spot: _of_producer(spot) and _later(spot),
        PRODUCER,
        lambda producer: producer + 100,
        "producer-sequence snapshot-producer snapshot-transaction txnindex-entries",
    ),
}
"""Name → which batch, which field, what is in it instead, and what a verification must name."""


def _plant(row: Row, site: Site, rng: random.Random) -> Fault:
    fits, field, change, rules = row
    spots = [spot for spot in site.spots() if not spot.replica.compacted and fits(spot)]
    spot = choose(rng, [s for s in spots if s.segment.settled and not s.replica.segments[0].base])
    batch = spot.segment.read(LOG)[spot.batch.position : spot.end]
    wrong = change(field.of(batch))
    data = sealed(patched(batch, field.at, field.layout.pack(wrong)))
    replace(
        spot.replica.storage, spot.log, patched(spot.segment.read(LOG), spot.batch.position, data)
    )
    told = f"{wrong} for {field.of(batch)} in byte {field.at} of the batch at {spot.batch.position}"
    files = [spot.replica.file(name) for name in _names(spot)]
    return fault(spot.replica, f"{told} of {spot.log}", files, rules, _ALONG)


def _names(spot: Spot) -> list[str]:
    return [entry.name for entry in spot.replica.storage.scan_dir(spot.replica.path)]


for _name, _row in KINDS.items():
    register(_name, partial(_plant, _row))
