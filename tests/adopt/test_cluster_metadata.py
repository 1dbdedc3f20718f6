"""The metadata log of a real Kafka, record by record as its own tool prints it (W-173)."""

from __future__ import annotations

import base64
import json
import re
import shutil
import uuid
from pathlib import Path
from typing import Any

import kafka_jars
import kafka_schemas
import pytest

from logstore.format.reader import read_records
from logstore.storage.local import LocalStorage
from replication.adopt import read_cluster_metadata, write_metadata_log
from replication.adopt.kraft import FEATURES
from replication.common.state import NO_LEADER
from replication.protocol import metadata_records, schema

pytestmark = [pytest.mark.slow, pytest.mark.essential]

PASSED_OVER = {
    *(0, 7, 8, 12, 17, 20, 27)  # what brokers and controllers say of themselves; features
}
_LINE = re.compile(r"\| offset: (\d+) .* payload: (\{.*\})")


def _printed(files: list[Path]) -> list[tuple[int, dict[str, Any]]]:
    """What Kafka's tool says of each record, in the order of the files."""
    result = kafka_jars.run_java(
        "org.apache.kafka.tools.DumpLogSegments",
        "--cluster-metadata-decoder",
        "--files",
        ",".join(map(str, files)),
    )
    found = (_LINE.fullmatch(line) for line in result.stdout.splitlines())
    return [(int(line[1]), json.loads(line[2])) for line in found if line is not None]


def _plain(layout: schema.Struct, message: Any, printed: dict[str, Any]) -> tuple[Any, Any]:
    """Ours and Kafka's as the same kind of values. The tool leaves tagged defaults out."""
    theirs = {kafka_schemas.snake_case(name): value for name, value in printed.items()}
    ours: dict[str, Any] = {}
    for field in layout.fields:
        value = getattr(message, field.name)
        if field.name not in theirs and (field.tag is not None or value in ((), None, False)):
            assert value == field.default, f"{field.name} is not printed"
            continue
        ours[field.name], theirs[field.name] = _value(field, value, theirs.get(field.name))
    return ours, theirs


def _value(field: schema.Field, value: Any, printed: Any) -> tuple[Any, Any]:
    if field.is_array and value is not None:
        each = field._replace(is_array=False)
        pairs = [_value(each, one, other) for one, other in zip(value, printed, strict=True)]
        return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]
    if isinstance(field.type, schema.Struct) and value is not None:
        return _plain(field.type, value, printed)
    if field.type == "uuid":
        return value, uuid.UUID(bytes=base64.urlsafe_b64decode(printed + "=="))
    return value, printed


def test_every_record_is_what_the_tool_of_kafka_prints(killed: Path):
    directory = killed / "__cluster_metadata-0"
    files = [*sorted(directory.glob("*.log")), *sorted(directory.glob("*.checkpoint"))]
    assert len(files) > 2, "segments and snapshots"
    names = _names(files)
    assert {kind for kind in names if kind not in metadata_records.DECODED} <= {
        *PASSED_OVER,
        *(metadata_records.BEGIN_TRANSACTION, metadata_records.END_TRANSACTION),
    }, names
    assert set(names.values()) >= {
        "TOPIC_RECORD",
        "PARTITION_RECORD",
        "PARTITION_CHANGE_RECORD",
        "CONFIG_RECORD",
    }


def _names(files: list[Path]) -> dict[int, str]:
    """Kafka's names of the types of all records, which are compared with what its tool prints."""
    printed = _printed(files)
    ours = [r for file in files for r in read_records(file.read_bytes())]
    assert [record.offset for record in ours] == [offset for offset, _ in printed]
    names: dict[int, str] = {}
    for record, (offset, theirs) in zip(ours, printed, strict=True):
        kind, message = metadata_records.decode(record.value)
        names[kind] = theirs["type"]
        if message is not None:
            name = metadata_records.DECODED[kind]
            assert re.sub("([A-Z])", r"_\1", name).upper()[1:] == theirs["type"], offset
            one, other = _plain(schema.message(name).body, message, theirs["data"])
            assert one == other, f"offset {offset}: {name}"
    return names


def test_the_tool_of_kafka_prints_what_ours_wrote(killed: Path, tmp_path: Path):
    """All of a real cluster, in a snapshot of ours: its tool, and our reader, have it again."""
    image = read_cluster_metadata(str(killed))
    assert image is not None
    topics = {
        name: topic._replace(
            partitions={
                number: state._replace(elr=(), last_known_leader=NO_LEADER)
                for number, state in topic.partitions.items()
            }
        )
        for name, topic in image.topics.items()
    }
    written = image._replace(topics=topics)
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    write_metadata_log(
        LocalStorage(), str(directory), written, {1: uuid.uuid4()}, 1_700_000_000_000
    )
    files = sorted(directory.glob("*.checkpoint"))
    assert set(_names(files).values()) == {
        "FEATURE_LEVEL_RECORD",
        "TOPIC_RECORD",
        "PARTITION_RECORD",
        "CONFIG_RECORD",
        "PRODUCER_IDS_RECORD",
    }
    told = [each["data"] for _, each in _printed(files) if each["type"] == "FEATURE_LEVEL_RECORD"]
    assert {each["name"]: each["featureLevel"] for each in told} == FEATURES
    again = read_cluster_metadata(str(tmp_path))
    assert again is not None
    assert again[:3] == written[:3]
    assert again.notes == ()


def test_snapshots_and_the_log_say_the_same(killed: Path, tmp_path: Path):
    """Each snapshot with the log after it, and the log alone; but for a defect of Kafka's."""
    source = killed / "__cluster_metadata-0"
    names = sorted(path.name for path in source.glob("*.checkpoint"))
    images = []
    for number, snapshot in enumerate(["", *names]):
        target = tmp_path / str(number) / source.name
        shutil.copytree(source, target)
        for name in names:
            if name != snapshot:
                (target / name).unlink()
        image = read_cluster_metadata(str(target.parent))
        assert image is not None
        assert image.certain_end == image.end_offset, "of one voter"
        # A broker that replays the removal of a topic at its start gives the next one its configs.
        configs = {key: each for key, each in image.configs.items() if key[1] != "made-again"}
        images.append(image._replace(configs=configs))
    assert len(images) > 1, "there are snapshots"
    assert all(image == images[0] for image in images)
