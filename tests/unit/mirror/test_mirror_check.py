"""``logstore mirror check``: copies of a directory beside a cluster that serves the original."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore import LogConfig, LogManager
from logstore.format.header import CRC_FROM, CRC_POSITION
from logstore.kernels import crc32c
from logstore.storage.local import LocalStorage
from replication import serve
from replication.mirror import MirrorFile, MirrorIdentity
from tests.support.commands import logstore
from tests.support.scripted_source import split

TP = TopicPartition("orders", 0)
BATCHES, RECORDS = 40, 5
SEGMENT = "00000000000000000000.log"


def fill(directory: Path, batches: int = BATCHES, topic: str = TP.topic, **config: Any) -> None:
    with LogManager([directory], LogConfig(segment_bytes=4096, **config)) as manager:
        log = manager.get_or_create(topic, 0, topic_id=uuid.uuid4())
        for number in range(batches):
            log.append([(b"k%d" % (n % 3), b"v%d-%d" % (number, n) * 5) for n in range(RECORDS)])


@pytest.fixture
def original(tmp_path: Path) -> Path:
    directory = tmp_path / "original"
    fill(directory)
    return directory


@pytest.fixture
def copy(original: Path) -> Path:
    return Path(shutil.copytree(original, original.parent / "copy"))


def check(source: Path, copied: Path, *arguments: str, code: int) -> dict[str, Any]:
    """What the command says, with a cluster that serves ``source`` as it is."""
    with serve(adopt=[source], read_only=True) as kafka:
        servers = kafka.bootstrap_servers
        told = logstore(
            "mirror", "check", "--from", servers, str(copied), *arguments, "--json", code=code
        )
    return dict(json.loads(told.stdout))


def log_file(directory: Path, number: int = 0, topic: str = TP.topic) -> Path:
    return sorted((directory / f"{topic}-0").glob("*.log"))[number]


@contextmanager
def changed(path: Path, number: int = 3) -> Iterator[tuple[bytearray, int, int]]:
    """The bytes of a file, and where one of its batches begins and ends."""
    data = bytearray(path.read_bytes())
    *before, batch = split(bytes(data))[: number + 1]
    begin = sum(map(len, before))
    yield data, begin, begin + len(batch)
    path.write_bytes(data)


def sealed(data: bytearray, begin: int, end: int) -> None:
    """Give a batch the checksum of what it has now."""
    crc = crc32c(memoryview(data)[begin + CRC_FROM : end])
    data[begin + CRC_POSITION : begin + CRC_FROM] = crc.to_bytes(4, "big")


def forge(copied: Path) -> None:
    """Another value, with a checksum that fits."""
    with changed(log_file(copied)) as (data, begin, end):
        data[end - 3] ^= 1
        sealed(data, begin, end)


def rot(copied: Path) -> None:
    with changed(log_file(copied)) as (data, _, end):
        data[end - 3] ^= 1


def lie(copied: Path) -> None:
    """Another leader epoch, which no checksum covers."""
    with changed(log_file(copied)) as (data, begin, _):
        data[begin + 15] = 7


def lose(copied: Path) -> None:
    with changed(log_file(copied)) as (data, begin, end):
        del data[begin:end]


def lose_a_segment(copied: Path) -> None:
    log_file(copied, 1).unlink()


def go_on(copied: Path) -> None:
    fill(copied, batches=1)


def scramble(copied: Path) -> None:
    """A length that leads nowhere."""
    with changed(log_file(copied)) as (data, begin, _):
        data[begin + 8 : begin + 12] = b"\x7f\xff\xff\xff"


FIRST = 3 * RECORDS  # of the changed batch
END = BATCHES * RECORDS


@pytest.mark.parametrize(
    ("break_it", "kind", "offset", "end", "text"),
    [
        (forge, "differs", FIRST + RECORDS - 1, FIRST + RECORDS, "records differ in value"),
        (rot, "missing", FIRST, FIRST + RECORDS, "not here, or damaged"),
        (lie, "differs", FIRST, FIRST + RECORDS, "leader epoch 7 here"),
        (lose, "missing", FIRST, FIRST + RECORDS, "not here, or damaged"),
        (lose_a_segment, "missing", None, None, "not here, or damaged"),
        (go_on, "extra", END, END + RECORDS, "above the high watermark"),
        (scramble, "missing", FIRST, FIRST + RECORDS, "not here, or damaged"),
    ],
)
def test_what_differs_is_named(
    break_it: Callable[[Path], None],
    kind: str,
    offset: int | None,
    end: int | None,
    text: str,
    original: Path,
    copy: Path,
) -> None:
    break_it(copy)
    told = check(original, copy, code=1)
    ((part,), (found,)) = told["partitions"], told["partitions"][0]["differences"]
    assert not told["equal"]
    assert (found["kind"], text in found["message"]) == (kind, True), found
    if offset is None:
        assert found["offset"] == int(log_file(original, 1).stem)
        assert found["endOffset"] == int(log_file(original, 2).stem)
    else:
        assert (found["offset"], found["endOffset"]) == (offset, end), found
    assert part["endOffset"] == END  # what comes behind is compared, too


@pytest.mark.parametrize("kept", [1, 0])
def test_a_tail_that_is_gone_is_missing(kept: int, original: Path, copy: Path) -> None:
    """The mirror had it: its high watermark is on file."""
    names = sorted(path.name for path in log_file(copy).parent.glob("*.log"))
    for name in names[kept:]:
        (log_file(copy).parent / name).unlink()
    (part,) = check(original, copy, code=1)["partitions"]
    (found,) = part["differences"]
    assert (found["kind"], found["endOffset"]) == ("missing", END)
    assert found["offset"] == (int(names[1].removesuffix(".log")) if kept else 0)
    assert not part["notCompared"]


def test_equal_batches(original: Path, copy: Path) -> None:
    told = check(original, copy, code=0)
    (part,) = told["partitions"]
    assert told["equal"]
    assert (part["offset"], part["endOffset"], part["batches"]) == (0, END, BATCHES)
    assert part["bytes"] == sum(each.stat().st_size for each in (copy / "orders-0").glob("*.log"))
    assert part["notCompared"] == []


def test_other_borders_of_segments_are_equal(original: Path, copy: Path) -> None:
    """A mirror rolls where its own configuration says."""
    first, second = log_file(copy), log_file(copy, 1)
    first.write_bytes(first.read_bytes() + second.read_bytes())
    for each in (copy / "orders-0").glob(f"{second.stem}.*"):
        each.unlink()
    first.with_suffix(".index").unlink()
    assert check(original, copy, code=0)["partitions"][0]["batches"] == BATCHES


def test_what_only_one_side_has_is_not_compared(original: Path, copy: Path) -> None:
    with LogManager([original]) as manager:
        log = manager.get_or_create(*TP)
        log.delete_records(12)
        log.append([(b"k", b"v")])
    fill(original, topic="later")
    fill(copy, topic="gone")
    told = check(original, copy, code=0)
    left = {
        part["topic"]: [tuple(each.values())[:3] for each in part["notCompared"]]
        for part in told["partitions"]
    }
    assert left == {
        "orders": [("expired", 0, 12), ("behind", END, END + 1)],
        "later": [("not here", 0, END)],
        "gone": [("gone", -1, -1)],
    }
    assert "213 offsets were not compared" in told["verdict"]


def test_nothing_that_could_be_compared_is_not_equal_in_words(original: Path, copy: Path) -> None:
    """The source has nothing any more of what is here."""
    with LogManager([original]) as manager:
        manager.get_or_create(*TP).delete_records(END)
    told = check(original, copy, code=0)
    assert told["verdict"].startswith("0 of 1 partitions compared")
    assert "nothing is known" in told["verdict"]


def test_another_topic_of_the_name(tmp_path: Path, original: Path) -> None:
    fill(tmp_path / "other")
    (tmp_path / "other" / "meta.properties").unlink()
    (part,) = check(original, tmp_path / "other", code=1)["partitions"]
    assert part["differences"][0]["kind"] == "topic"


def test_another_cluster_is_refused(tmp_path: Path, original: Path) -> None:
    fill(tmp_path / "other")
    (tmp_path / "other" / "meta.properties").write_text("version=0\ncluster.id=another\n")
    with serve(adopt=[original], read_only=True) as kafka:
        told = logstore(
            "mirror", "check", "--from", kafka.bootstrap_servers, str(tmp_path / "other"), code=2
        )
    assert "is of the cluster another" in told.stderr
    (tmp_path / "other" / "meta.properties").unlink()
    MirrorFile.of(str(tmp_path / "other"), LocalStorage()).write(MirrorIdentity("third", "a:1"))
    with serve(adopt=[original], read_only=True) as kafka:
        told = logstore(
            "mirror", "check", "--from", kafka.bootstrap_servers, str(tmp_path / "other"), code=2
        )
    assert "is of the cluster third" in told.stderr


def test_topics_by_patterns(original: Path, copy: Path) -> None:
    fill(copy, topic="mine")
    told = check(original, copy, "--topics", "or.*", "--rate", "100MB", code=0)
    assert [part["topic"] for part in told["partitions"]] == ["orders"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--topics", "nothing"), "no topic matches"),
        (("--topics", "("), "is no pattern"),
        (("--rate", "fast"), "give a number with a unit"),
    ],
)
def test_slips(arguments: tuple[str, ...], text: str, original: Path, copy: Path) -> None:
    with serve(adopt=[original], read_only=True) as kafka:
        servers = kafka.bootstrap_servers
        told = logstore("mirror", "check", "--from", servers, str(copy), *arguments, code=2)
    assert text in told.stderr


def test_nobody_answers(copy: Path) -> None:
    told = logstore("mirror", "check", "--from", "127.0.0.1:1", str(copy), code=2)
    assert "127.0.0.1:1" in told.stderr
    assert "--from" in logstore("mirror", "check", str(copy), code=2).stderr


def test_checksums_stand_for_nothing(tmp_path: Path) -> None:
    """All headers are the same."""
    fill(tmp_path / "original")
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    rot(tmp_path / "copy")
    assert not check(tmp_path / "original", tmp_path / "copy", code=1)["equal"]


def test_records_that_the_source_compacted_since(tmp_path: Path) -> None:
    """What it still has must be here; that the mirror has more is as it should be."""
    directory = tmp_path / "compacted"
    with LogManager([directory], LogConfig(segment_bytes=4096)) as manager:
        log = manager.get_or_create("table", 0, config={"cleanup.policy": "compact"})
        for number in range(BATCHES):
            log.append([(b"k%d" % (n % 3), b"v%d-%d" % (number, n) * 5) for n in range(RECORDS)])
    kept = Path(shutil.copytree(directory, tmp_path / "kept"))
    logstore("compact", str(directory))
    (part,) = check(directory, kept, code=0)["partitions"]
    assert {each["reason"] for each in part["notCompared"]} == {"compacted"}

    last = log_file(kept, -1, "table")
    with changed(last, 0) as (data, begin, end):
        data[end - 3] ^= 1
        sealed(data, begin, end)
    (part,) = check(directory, kept, code=1)["partitions"]
    assert "records differ" in part["differences"][-1]["message"]
