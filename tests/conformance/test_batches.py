"""Kafka's DefaultRecordBatchTest and LogValidatorTest under their names: what a leader refuses and
rewrites (F-163 … F-180), of which unit tests see the format alone."""

from __future__ import annotations

import pytest

from logstore.common.config import COMPRESSION_TYPES
from logstore.common.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordRejectedError,
    RecordTooLargeError,
)
from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression
from logstore.format.header import CRC_POSITION, batch_crc, check_batch_crc, parse_header
from tests.support.builders import NOW, VALUE, Disk, batch, marker, produced

COUNT_AT, DELTA_AT = 57, 23


def patched(data: bytes, position: int, number: int) -> bytes:
    """A batch with another i32 in its header and the checksum that fits it."""
    out = bytearray(data)
    out[position : position + 4] = number.to_bytes(4, "big", signed=True)
    crc = batch_crc(out, parse_header(out))
    out[CRC_POSITION : CRC_POSITION + 4] = crc.to_bytes(4, "big")
    return bytes(out)


class TestDefaultRecordBatch:
    @pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
    def test_invalid_record_count(self, codec: Compression) -> None:
        """testInvalidRecordCountTooManyNonCompressedV2, …TooLittleNonCompressedV2,
        …TooManyCompressedV2, …TooLittleCompressedV2: the count of the header and the real one must
        agree (F-73)."""
        with Disk().open() as log:
            for wrong in (2, 4):
                with pytest.raises(RecordRejectedError):
                    log.append_as_leader(
                        patched(batch(count=3, compression=codec), COUNT_AT, wrong), 0
                    )
            assert log.log_end_offset == 0

    def test_invalid_crc(self) -> None:
        """testInvalidCrc: refused by leaders and followers; nothing is written."""
        data = bytearray(batch(count=3))
        data[70] ^= 1
        with Disk().open() as log:
            with pytest.raises(CorruptMessageError):
                log.append_as_leader(data, 0)
            with pytest.raises(CorruptMessageError):
                log.replica.append_as_follower(data)
            assert log.size == 0

    def test_size_in_bytes_and_offsets_survive_the_leader(self) -> None:
        """testSetPartitionLeaderEpoch, testSetLastOffset: offset and epoch lie outside the
        checksum (F-62)."""
        with Disk().open() as log:
            log.append_as_leader(batch(count=3), 0)
            log.append_as_leader(batch(count=2, epoch=-1), 7)
            data = log.read(3).data
            header = parse_header(data)
            assert (header.base_offset, header.last_offset, header.leader_epoch) == (3, 4, 7)
            check_batch_crc(data, header)
            assert header.crc == parse_header(batch(count=2)).crc


class TestLogValidator:
    def test_control_records_not_allowed_from_clients(self) -> None:
        """testControlRecordsNotAllowedFromClients (F-168)."""
        with Disk().open() as log:
            for data in (marker(commit=True), marker(commit=False)):
                with pytest.raises(InvalidRecordError, match="control"):
                    log.append_as_leader(data, 0)
            assert log.log_end_offset == 0

    @pytest.mark.parametrize("count", [1, 4])
    def test_record_count_and_last_offset_delta(self, count: int) -> None:
        """testNonCompressed…/checkRecordCount: lastOffsetDelta + 1 = recordsCount (F-167)."""
        with Disk().open() as log:
            for delta in (count, count + 5, 0 if count > 1 else 3):
                with pytest.raises(RecordRejectedError):
                    log.append_as_leader(patched(batch(count=count), DELTA_AT, delta), 0)

    def test_a_client_appends_no_empty_batch(self) -> None:
        """F-93, F-165, F-167."""
        empty = patched(patched(batch()[:61], 8, 49), COUNT_AT, 0)
        with Disk().open() as log:
            for data in (empty, b"", batch()[:-1]):
                with pytest.raises(RecordRejectedError):
                    log.append_as_leader(data, 0)

    def test_base_offset_of_a_client(self) -> None:
        """F-163: must be 0."""
        with Disk().open() as log, pytest.raises(InvalidRecordError, match="base offset"):
            log.append_as_leader(batch(5), 0)

    def test_producer_without_sequence(self) -> None:
        """F-169."""
        data = patched(produced(1, 0), 53, -1)
        with Disk().open() as log, pytest.raises(InvalidRecordError):
            log.append_as_leader(data, 0)

    @pytest.mark.parametrize(
        ("stamp", "taken"),
        [
            (NOW + 1000, True),
            (NOW + 1001, False),
            (NOW - 5000, True),
            (NOW - 5001, False),
            (-1, True),
        ],
    )
    def test_timestamp_limits(self, stamp: int, taken: bool) -> None:
        """testInvalidCreateTimeNonCompressedV2, …CompressedV2 (F-172): limits are inclusive; −1
        is no timestamp."""
        config = {"message_timestamp_after_max_ms": 1000, "message_timestamp_before_max_ms": 5000}
        for codec in (Compression.NONE, Compression.LZ4):
            with Disk(**config).open() as log:
                log.append_as_leader(batch(), 0)
                data = batch(timestamp=stamp, compression=codec)
                if taken:
                    log.append_as_leader(data, 0)
                    continue
                with pytest.raises(InvalidTimestampError):
                    log.append_as_leader(data, 0)
                assert log.log_end_offset == 1

    @pytest.mark.parametrize("stamp", [NOW - 5001, NOW + 1001])
    def test_timestamp_limits_of_own_records(self, stamp: int) -> None:
        """F-172, for records that the library encodes itself."""
        config = {"message_timestamp_after_max_ms": 1000, "message_timestamp_before_max_ms": 5000}
        with Disk(**config).open() as log:
            log.append([(None, b"v", NOW)])
            with pytest.raises(InvalidTimestampError):
                log.append([(None, b"v", NOW), (None, b"v", stamp)])
            with pytest.raises(InvalidTimestampError):
                log.append_columns([b"v", b"v"], timestamps=[NOW, stamp])
            assert log.log_end_offset == 1

    def test_all_bad_records_are_listed(self) -> None:
        """testRecordBatchWithoutKey…, testBatchWithInvalidRecordsAndInvalidTimestamp (F-176)."""
        data = bytes(encode_batch([(b"k", b"v", NOW), (None, b"v", NOW), (None, b"v", NOW)]))
        with Disk(cleanup_policy=("compact",)).open() as log:
            with pytest.raises(InvalidRecordError) as caught:
                log.append_as_leader(data, 0)
            assert [index for index, _ in caught.value.record_errors] == [1, 2]

    def test_client_claims_log_append_time(self) -> None:
        """testInvalidTimestampTypeFromClient, where the topic has that time itself. Any other takes
        the times of the records (F-173)."""
        with Disk(message_timestamp_type="LogAppendTime").open() as log:
            with pytest.raises(InvalidTimestampError) as caught:
                log.append_as_leader(batch(count=2, log_append_time=NOW), 0)
            assert [index for index, _ in caught.value.record_errors] == [0, 1]
        for codec in (Compression.NONE, Compression.LZ4):
            with Disk().open() as log:
                honest = batch(timestamp=NOW - 5, compression=codec)
                claim = batch(timestamp=NOW - 5, compression=codec, log_append_time=NOW - 5)
                log.append_as_leader(honest, 0)
                log.append_as_leader(claim, 0)
                stored = log.read(0).data
                size = len(stored) // 2
                assert stored[17:size] == stored[size + 17 :]  # from the checksum on
        with Disk(compression_type="gzip").open() as log:
            log.append_as_leader(batch(count=2, timestamp=NOW - 5, log_append_time=NOW), 0)
            assert [record.timestamp for record in log.records()] == [NOW] * 2
            assert not parse_header(log.read(0).data).is_log_append_time

    @pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
    def test_log_append_time_topic(self, codec: Compression) -> None:
        """testLogAppendTimeNonCompressedV2, …CompressedV2 (F-94, F-179): all records carry the
        time of the append; offset of the maximum is the first of them."""
        disk = Disk(message_timestamp_type="LogAppendTime")
        with disk.open() as log:
            disk.clock.advance(77)
            info = log.append_as_leader(batch(count=3, timestamp=5, compression=codec), 0)
            assert info.log_append_time == info.max_timestamp == NOW + 77
            assert [r.timestamp for r in log.records()] == [NOW + 77] * 3
            log.append([(None, b"v", 5)])
            assert [r.timestamp for r in log.records()] == [NOW + 77] * 4

    @pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
    def test_a_wrong_maximum_is_corrected(self, codec: Compression) -> None:
        """F-179."""
        records = [(None, VALUE, NOW + 3), (None, VALUE, NOW + 9), (None, VALUE, NOW)]
        data = bytearray(encode_batch(records, compression=codec))
        data[35:43] = (NOW + 100).to_bytes(8, "big")
        with Disk().open() as log:
            info = log.append_as_leader(patched(bytes(data), COUNT_AT, 3), 0)
            assert info.max_timestamp == NOW + 9
            header = parse_header(log.read(0).data)
            assert header.max_timestamp == NOW + 9
            assert header.compression is codec
            assert [r.timestamp - NOW for r in log.records()] == [3, 9, 0]

    @pytest.mark.parametrize("target", COMPRESSION_TYPES)
    def test_target_codec(self, target: str) -> None:
        """testRecompressionV2, testUncompressed…, testCompressedV2 (F-177, F-178): from each codec
        to the topic's."""
        for codec in Compression:
            data = batch(
                count=5,
                key=b"k",
                compression=codec,
                producer_id=4,
                producer_epoch=0,
                base_sequence=0,
            )
            with Disk(compression_type=target).open() as log:
                log.append_as_leader(data, 0)
                stored = parse_header(log.read(0).data)
                expected = {"producer": codec, "uncompressed": Compression.NONE}
                named = {str(c): c for c in Compression}
                assert stored.compression is expected.get(target, named.get(target))
                assert (stored.producer_id, stored.base_sequence, stored.record_count) == (4, 0, 5)
                assert [(r.offset, r.key, r.value) for r in log.records()] == [
                    (offset, b"k", VALUE) for offset in range(5)
                ]

    def test_size_after_a_rebuild(self) -> None:
        """F-180: ``max.message.bytes`` holds for what would be stored."""
        data = batch(count=50, compression=Compression.GZIP)
        limit = len(data) + 10
        with Disk(compression_type="uncompressed", max_message_bytes=limit).open() as log:
            with pytest.raises(RecordTooLargeError):
                log.append_as_leader(data, 0)
            assert log.log_end_offset == 0
