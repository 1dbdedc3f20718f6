"""A running Kafka is mirrored, asked by Spark, backed up, damaged, checked, and restored into
another Kafka on which its group goes on: by the commands of README, with 336,776 flights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mirror_story as story
import pytest
from broker import KafkaBroker
from confluent_kafka import Producer
from mirror_story import Page, Promoted, Read

from examples.demo.flights import TOTAL, Rows, by_partition, flights
from tests.spark.object_store import ObjectStore, object_store
from tests.support.until import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.essential]

FLIGHTS, PAYMENTS, GROUP, WRITER = "flights", "payments", "dashboards", "cashier"
PARTITIONS, BEFORE = 4, 60_000
SMALL_SEGMENTS = {"segment.bytes": 8 << 20}
FINDINGS, ERROR = 1, 2
BACKUP = "s3://bucket/kafka"
COMMANDS, PYTHON = story.readme()


@pytest.fixture(scope="module")
def sent() -> Sequence[Rows]:
    """The flights of each partition."""
    return by_partition(flights(), PARTITIONS)


@pytest.fixture(scope="module")
def halves(sent: Sequence[Rows]) -> list[list[Rows]]:
    """The first flights of each partition, and the others."""

    def part(rows: Rows, half: slice) -> Rows:
        return Rows(rows.keys[half], rows.values[half], rows.timestamps[half])

    cuts = slice(0, TOTAL // PARTITIONS // 2), slice(TOTAL // PARTITIONS // 2, None)
    return [[part(rows, cut) for rows in sent] for cut in cuts]


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as opened:
        yield opened


def test_mirrored_asked_backed_up_broken_and_restored(
    kafka: str,
    spark: SparkSession,
    store: ObjectStore,
    sent: Sequence[Rows],
    halves: Sequence[Sequence[Rows]],
    tmp_path: Path,
) -> None:
    with KafkaBroker(tmp_path / "source", heap="1g") as source:
        mine = {"kafka:9092": source.bootstrap, BACKUP: store.uri("bucket/kafka")}
        page = Page(tmp_path, {**mine, '"copy"': f'"{tmp_path / "copy"}"'})
        source.create_topic(FLIGHTS, PARTITIONS, SMALL_SEGMENTS)
        source.create_topic(PAYMENTS)
        writer = story.transactional(source.bootstrap, WRITER)
        lives = [live(source.bootstrap, halves[0], writer, "commit", "abort")]
        with page.running(COMMANDS["mirror"]):
            lives += [live(source.bootstrap, halves[1], writer, "")]
            until(
                lambda: page.ends("copy") == page.ends(str(source.log_dir)),
                "the mirror has what the source has",
            )
            page.run(COMMANDS["mirror check"])
            page.run(COMMANDS["backup"])
            page.run(COMMANDS["backup check"])
            asked_by_spark(page)
            damage_of_the_copy_is_named(page)
        damage_of_the_backup_is_named(page, store)
    page.run(COMMANDS["restore"])
    page.run("logstore verify restored")
    page.run(f"{COMMANDS['promote']} --listener 127.0.0.1:{story.two_ports()}")
    with Promoted(tmp_path / "restored", tmp_path / "second") as second:
        goes_on(second.bootstrap, sent, lives)


def live(bootstrap: str, rows: Sequence[Rows], writer: Producer, *ends: str) -> Read:
    """Records, transactions that end so, and what the group has read until it left."""
    story.produce(bootstrap, FLIGHTS, rows)
    for end in ends:
        story.in_transaction(writer, PAYMENTS, end or "open", end)
    begin = {"auto.offset.reset": "earliest"}
    return story.read(bootstrap, GROUP, FLIGHTS, PARTITIONS, BEFORE, **begin)


def asked_by_spark(page: Page) -> None:
    """README's Python: over the mirror's own files, the backup alone, and both as one."""
    names: dict[str, Any] = {}
    exec(compile(page.mine(PYTHON), "README.md", "exec"), names)
    for name in ("mirrored", "stored", "both"):
        counted = names[name].where(f"topic = '{FLIGHTS}'").groupBy("partition", "offset").count()
        found = counted.selectExpr("count(*)", "max(count)").first()
        assert tuple(found) == (TOTAL, 1), name


def damage_of_the_copy_is_named(page: Page) -> None:
    first = sorted((page.place / "copy" / f"{FLIGHTS}-0").glob("*.log"))[0]
    story.flip(first)
    assert first.name in page.run("logstore verify copy", FINDINGS)
    assert f"{FLIGHTS}-0" in page.run(COMMANDS["mirror check"], FINDINGS)


def damage_of_the_backup_is_named(page: Page, store: ObjectStore) -> None:
    """Of a second one, from which nothing is restored."""
    from pyarrow import fs

    fs.copy_files(
        "bucket/kafka",
        "bucket/broken",
        source_filesystem=store.files,
        destination_filesystem=store.files,
    )
    objects = store.files.get_file_info(fs.FileSelector("bucket/broken", recursive=True))
    logs = sorted(
        each.path for each in objects if each.path.endswith(".log") and FLIGHTS in each.path
    )
    with store.files.open_input_file(logs[0]) as opened:
        data = bytearray(opened.read())
    data[len(data) // 2] ^= 1
    with store.files.open_output_stream(logs[0]) as stream:
        stream.write(bytes(data))
    store.files.delete_file(logs[1])
    broken = Page(page.place, {**page.replaced, BACKUP: store.uri("bucket/broken")})
    said = broken.run(COMMANDS["backup check"], FINDINGS)
    assert all(path.rpartition("/")[2] in said for path in logs[:2]), said
    assert "restored" not in [each.name for each in page.place.iterdir()]
    refused = broken.run(COMMANDS["restore"], ERROR)
    assert any(path.rpartition("/")[2] in refused for path in logs[:2])  # the first that is met
    assert not (page.place / "restored").exists()


def goes_on(bootstrap: str, sent: Sequence[Rows], lives: Sequence[Read]) -> None:
    """On the other Kafka: everything that was sent, once; the group from where it was; the
    transactional producer, whose open transaction holds back no one."""
    left = TOTAL - sum(len(rows) for life in lives for rows in life.rows)
    last = story.read(bootstrap, GROUP, FLIGHTS, PARTITIONS, left)
    assert last.first == {
        partition: offset
        for partition, offset in lives[-1].committed.items()
        if offset < len(sent[partition])
    }
    for partition, rows in enumerate(sent):
        for name in ("keys", "values", "timestamps"):
            read = [each for life in (*lives, last) for each in getattr(life.rows[partition], name)]
            assert read == getattr(rows, name), (partition, name)
    writer = story.transactional(bootstrap, WRITER)
    story.in_transaction(writer, PAYMENTS, "commit again", "commit")
    assert story.values(bootstrap, PAYMENTS, 2) == ["commit", "commit again"]
