"""The metadata log of KRaft and its snapshots, as files in memory (F-340, F-341, W-173)."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from logstore.common.errors import CorruptDataError
from logstore.format.batch import encode_batch
from logstore.format.control import ControlType, encode_control_key
from logstore.storage.memory import MemoryStorage
from replication.adopt import ClusterImage, electable, read_cluster_metadata
from replication.common.state import PartitionRegistration
from replication.protocol import UnsupportedVersionError, metadata_records, schema
from replication.protocol import messages as wire
from replication.protocol.codecs import encoder
from replication.protocol.compiler import joined, uvarint
from tests.support.builders import batch

DIRECTORY = "/data/__cluster_metadata-0"
ID, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)
TYPES = {name: kind for kind, name in metadata_records.DECODED.items()}
BEGIN, END, ABORT, NO_OP = (bytes((1, kind, 0, 0)) for kind in (23, 24, 25, 20))

TOPIC = wire.TopicRecord("events", ID)
PARTITION = wire.PartitionRecord(
    partition_id=0,
    topic_id=ID,
    replicas=(1, 2),
    isr=(1,),
    leader=1,
    leader_epoch=3,
    partition_epoch=5,
    eligible_leader_replicas=(2,),
    last_known_elr=(1,),
)
ONE_VOTER = {"currentVoters": [{"voterId": 1}], "data_version": 0}


def value(message: Any) -> bytes:
    """A message in its newest version with its frame; bytes as they are."""
    if isinstance(message, bytes):
        return message
    name = type(message).__name__
    version = schema.message(name).versions.last
    frame = b"\1" + uvarint(TYPES[name]) + uvarint(version)
    return frame + joined(encoder(name, version)(message))


def changes(*messages: Any, at: int = 0) -> bytes:
    """A batch for each message, from offset ``at`` on."""
    return b"".join(batch(at + n, value=value(each)) for n, each in enumerate(messages))


def control(kind: ControlType, at: int, content: bytes = b"\0\0") -> bytes:
    return batch(at, key=encode_control_key(kind), value=content, control=True)


class Files:
    """The directory of a metadata log in memory."""

    def __init__(self, log: bytes = b"", base: int = 0) -> None:
        self.storage = MemoryStorage()
        for path in ("/data", DIRECTORY):
            self.storage.make_dir(path)
        self.segment(base, log)
        self.put("quorum-state", json.dumps(ONE_VOTER).encode())

    def put(self, name: str, data: bytes) -> None:
        self.storage.write_file(f"{DIRECTORY}/{name}", data)

    def segment(self, base: int, data: bytes) -> None:
        self.put(f"{base:020}.log", data)

    def snapshot(self, end: int, *messages: Any, footer: bool = True) -> None:
        data = control(ControlType.SNAPSHOT_HEADER, 0) + changes(*messages, at=1)
        if footer:
            data += control(ControlType.SNAPSHOT_FOOTER, 1 + len(messages))
        self.put(f"{end:020}-{1:010}.checkpoint", data)

    def read(self) -> ClusterImage:
        image = read_cluster_metadata("/data", self.storage)
        assert image is not None
        return image


def image_of(*messages: Any) -> ClusterImage:
    return Files(changes(*messages)).read()


def test_a_directory_without_a_metadata_log_has_no_image():
    storage = MemoryStorage()
    storage.make_dir("/data")
    assert read_cluster_metadata("/data", storage) is None


def test_topics_configs_brokers_and_numbers():
    image = image_of(
        TOPIC,
        PARTITION,
        wire.ConfigRecord(2, "events", "retention.ms", "5"),
        wire.ConfigRecord(2, "events", "segment.bytes", "7"),
        wire.ConfigRecord(2, "events", "segment.bytes", None),
        wire.ConfigRecord(4, "", "log.retention.ms", "9"),
        wire.ConfigRecord(4, "1", "log.retention.ms", "8"),
        wire.ProducerIdsRecord(1, 0, 2000),
        wire.ProducerIdsRecord(2, 0, 1000),
    )
    assert image.topics["events"].id == ID
    assert image.topics["events"].partitions == {
        0: PartitionRegistration((1, 2), (1,), 1, 3, 5, elr=(2,), last_known_leader=1)
    }
    assert image.topic_configs("events") == {"retention.ms": "5"}
    assert image.topic_configs("others") == {}
    defaults, own = {"log.retention.ms": "9"}, {"log.retention.ms": "8"}
    assert image.broker_configs() == {"": defaults, "1": own}
    assert image.next_producer_id == 2000
    assert (image.certain_end, image.end_offset, image.notes) == (9, 9, ())


def test_a_change_of_a_partition_names_what_changes():
    """The leader epoch rises with each leader that is named, the partition epoch always."""
    change = wire.PartitionChangeRecord(0, ID)
    image = image_of(
        TOPIC,
        PARTITION,
        change._replace(isr=(1, 2)),
        change._replace(leader=2),
        change._replace(leader=2, isr=()),
        change._replace(replicas=(2, 1)),
    )
    expected = PartitionRegistration((2, 1), (), 2, 5, 9, elr=(2,), last_known_leader=1)
    assert image.topics["events"].partitions[0] == expected


def test_who_may_lead_after_a_clean_stop_of_all():
    """KIP-966: the ISR is empty then."""
    stopped = wire.PartitionChangeRecord(0, ID, isr=(), leader=-1)

    def led_by(*messages: Any) -> tuple[int, ...]:
        return electable(image_of(TOPIC, PARTITION, *messages).topics["events"].partitions[0])

    assert led_by() == (1, 2)
    assert led_by(stopped) == (2,)
    assert led_by(stopped._replace(eligible_leader_replicas=())) == (1,)
    several = stopped._replace(eligible_leader_replicas=(), last_known_elr=(1, 2))
    assert led_by(several) == ()  # they were eligible once, and one of them led
    assert led_by(stopped._replace(eligible_leader_replicas=(), last_known_elr=())) == ()
    other = wire.TopicRecord("other", OTHER)
    assert led_by(stopped, other, wire.ClearElrRecord("other")) == (2,)
    assert led_by(stopped, wire.ClearElrRecord("events")) == ()
    assert led_by(stopped, wire.ClearElrRecord("")) == ()


def test_a_topic_that_is_removed_takes_its_configs_along_and_may_come_again():
    config = wire.ConfigRecord(2, "events", "retention.ms", "5")
    gone = (TOPIC, PARTITION, config, wire.RemoveTopicRecord(ID))
    assert image_of(*gone)[:2] == ({}, {})
    again = image_of(*gone, TOPIC._replace(topic_id=OTHER), PARTITION._replace(topic_id=OTHER))
    assert again.topics["events"].id == OTHER
    assert again.configs == {}


def test_what_an_image_does_not_carry_is_counted():
    """Of an unknown type, too. A removal takes one away."""
    acl, no_acl, password, no_password, quota = (
        bytes((1, kind, 0)) for kind in (18, 19, 11, 22, 14)
    )
    unknown = bytes((1, 77, 3, 9, 9))
    image = image_of(acl, acl, no_acl, password, no_password, quota, unknown, unknown, NO_OP)
    assert image.left_out == {"ACLs": 1, "client quotas": 1, "records of type 77": 2}


def test_a_transaction_counts_as_a_whole_or_not_at_all():
    """KIP-868: ended, aborted, and open at the end of the log."""
    other = wire.TopicRecord("other", OTHER)
    assert set(image_of(TOPIC, BEGIN, other, END).topics) == {"events", "other"}
    assert set(image_of(TOPIC, BEGIN, other, ABORT).topics) == {"events"}
    still_open = image_of(TOPIC, BEGIN, other)
    assert set(still_open.topics) == {"events"}
    assert still_open.notes == ("an open transaction of 1 changes of metadata is left out",)


# -- files -----------------------------------------------------------------------------------------


def test_the_newest_snapshot_stands_for_what_lies_below_its_end():
    files = Files(changes(TOPIC, wire.RemoveTopicRecord(ID), TOPIC))
    files.segment(3, changes(PARTITION, at=3))
    files.snapshot(1, TOPIC)
    files.snapshot(3, wire.TopicRecord("later", ID))
    image = files.read()
    assert {name: set(topic.partitions) for name, topic in image.topics.items()} == {"later": {0}}
    assert image.end_offset == 4


def test_a_snapshot_may_end_inside_a_segment_and_inside_a_batch():
    values = [(None, value(each), 0) for each in (TOPIC, PARTITION, NO_OP)]
    files = Files(bytes(encode_batch(values, base_offset=0)))
    files.snapshot(1, TOPIC)
    assert files.read().topics["events"].partitions.keys() == {0}


def test_a_log_that_ends_below_the_snapshot_does_not_count():
    """A node fetches a snapshot, and is killed before it cuts its log."""
    files = Files(changes(TOPIC))
    files.snapshot(4, wire.TopicRecord("later", OTHER))
    image = files.read()
    assert (set(image.topics), image.certain_end, image.end_offset) == ({"later"}, 4, 4)
    files.storage.remove(f"{DIRECTORY}/{0:020}.log")
    assert files.read() == image


def test_what_no_majority_may_have_had_is_told():
    """F-341: only a snapshot, or a quorum of one voter, makes it certain."""
    files = Files(changes(TOPIC, NO_OP))
    files.snapshot(1, TOPIC)
    assert files.read().certain_end == 2
    for state in (b"{}", b"[]", b"nonsense", b"{" * 10_000, b'{"currentVoters": [1, 2]}'):
        files.put("quorum-state", state)
        image = files.read()
        assert (image.certain_end, image.end_offset) == (1, 2)
        assert "from offset 1 to 1 are taken" in image.notes[0]


def test_voters_that_may_change_are_in_the_log():
    """A VotersRecord begins with its version, and how many there are, and one more."""
    for content, certain_end in ((b"\0\0\2", 2), (b"\0\0\3", 0), (b"\0\0", 0)):
        files = Files(control(ControlType.KRAFT_VOTERS, 0, content) + changes(TOPIC, at=1))
        files.put("quorum-state", b'{"data_version":1}')
        assert files.read().certain_end == certain_end


@pytest.mark.parametrize("tail", [changes(PARTITION, at=1)[:-1], bytes(500), changes(TOPIC)[:40]])
def test_an_unfinished_write_at_the_end_is_left_out(tail):
    image = Files(changes(TOPIC) + tail).read()
    assert image.topics["events"].partitions == {}
    assert "an unfinished write from byte" in image.notes[0]


def flipped(data: bytes, at: int = -3) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def test_a_last_batch_with_a_wrong_checksum_is_an_unfinished_write():
    image = Files(changes(TOPIC) + flipped(changes(PARTITION, at=1))).read()
    assert image.end_offset == 1
    assert len(image.notes) == 1


def _damaged() -> dict[str, tuple[Files, str]]:
    middle = Files(flipped(changes(TOPIC)) + changes(NO_OP, at=1))
    earlier = Files(changes(TOPIC)[:-1])
    earlier.segment(1, changes(NO_OP, at=1))
    hole = Files(changes(TOPIC) + changes(PARTITION, at=2))
    between = Files(changes(TOPIC))
    between.segment(2, changes(PARTITION, at=2))
    above = Files(changes(TOPIC, at=5), base=5)
    above.snapshot(4, NO_OP)
    unfinished = Files(changes(TOPIC))
    unfinished.snapshot(1, TOPIC, footer=False)
    torn = Files(changes(TOPIC))
    torn.put(f"{1:020}-{1:010}.checkpoint", control(ControlType.SNAPSHOT_HEADER, 0)[:-1])
    empty = Files()
    empty.storage.remove(f"{DIRECTORY}/{0:020}.log")
    return {
        "a flipped bit before others": (middle, "checksum"),
        "a torn batch before a segment": (earlier, "torn"),
        "a hole in a segment": (hole, "offset 1 is missing"),
        "a hole between segments": (between, "ends at offset 1"),
        "a hole after the snapshot": (above, "begins at offset 5"),
        "a snapshot without an end": (unfinished, "without its last batch"),
        "a torn snapshot": (torn, "torn"),
        "no segment": (empty, "has no segment"),
    }


DAMAGED = _damaged()


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_an_error_and_no_smaller_cluster(name):
    files, reason = DAMAGED[name]
    with pytest.raises(CorruptDataError, match=reason):
        files.read()


def test_a_file_that_is_too_large_for_a_segment_is_not_read(tmp_path):
    """It may be sparse, and practically endless."""
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    with open(directory / f"{0:020}.log", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CorruptDataError, match="too many for a segment"):
        read_cluster_metadata(str(tmp_path))


BAD = {
    "a partition of no topic": (PARTITION,),
    "a negative partition": (TOPIC, PARTITION._replace(partition_id=-1)),
    "a change of no partition": (TOPIC, wire.PartitionChangeRecord(7, ID)),
    "an epoch above the largest": (
        TOPIC,
        PARTITION._replace(leader_epoch=2**31 - 1),
        wire.PartitionChangeRecord(0, ID, leader=1),
    ),
    "a topic twice": (TOPIC, TOPIC._replace(topic_id=OTHER)),
    "an id twice": (TOPIC, TOPIC._replace(name="other")),
    "a topic that is no name": (TOPIC._replace(name="../etc"),),
    "no topic to clear": (wire.ClearElrRecord("other"),),
    "no topic to remove": (wire.RemoveTopicRecord(ID),),
    "a negative producer id": (wire.ProducerIdsRecord(1, 0, -1),),
    "a transaction in a transaction": (BEGIN, BEGIN),
    "an end without a begin": (END,),
    "no frame": (b"",),
    "bytes after the fields": (value(TOPIC) + b"\0",),
    "fields cut short": (value(PARTITION)[:-1],),
    "an endless number": (b"\xff" * 20,),
}


@pytest.mark.parametrize("name", BAD)
def test_a_record_that_cannot_be_is_an_error_with_its_place(name):
    """Not the last batch: that it is whole says that it was meant."""
    with pytest.raises(CorruptDataError, match=r"00000\.log at byte \d+: offset \d+: "):
        image_of(*BAD[name])


def test_a_later_version_of_a_record_that_is_needed_is_an_error():
    with pytest.raises(UnsupportedVersionError, match="TopicRecord has no version 1"):
        image_of(bytes((1, 2, 1)) + value(TOPIC)[3:])
    with pytest.raises(UnsupportedVersionError, match="metadata record has no version 2"):
        image_of(b"\2\2\0")


def test_tagged_fields_of_later_releases_are_skipped():
    assert set(image_of(value(TOPIC)[:-1] + b"\1\x63\1\7").topics) == {"events"}


def test_any_byte_changed_gives_an_image_or_an_error_of_its_kind():
    """The checksums are right, as a hostile writer has them."""
    good = [value(each) for each in (TOPIC, PARTITION, wire.ConfigRecord(2, "events", "a", "b"))]
    for which, record in enumerate(good):
        for at in range(len(record)):
            for byte in (0, 1, 0x7F, 0x80, 0xFF):
                changed = bytes(record[:at]) + bytes((byte,)) + record[at + 1 :]
                try:
                    image_of(*good[:which], changed, *good[which + 1 :])
                except (CorruptDataError, UnsupportedVersionError):
                    continue
