"""``logstore dump`` on segments, indexes, snapshots and checkpoints that Kafka wrote."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner, Result

from checkpoints.errors import CheckpointFailedError
from logstore.cli import main
from logstore.cli.dumping.log import dump_log
from logstore.cli.dumping.output import Output
from logstore.common.errors import ConfigError, InvariantError
from logstore.format.batch import encode_batch
from logstore.format.filenames import MAX_OFFSET
from logstore.storage import File
from logstore.storage.local import LocalStorage
from tests.support.cases import for_each

GOLDEN = Path(__file__).parents[2] / "golden" / "data"
FOLDERS = sorted(GOLDEN.glob("v*"))
KEYS = [
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "key",
    "value",
    "headers",
    "leaderEpoch",
    "producerId",
    "producerEpoch",
    "sequence",
    "isTransactional",
    "isControl",
    "compression",
]


def dump(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["dump", *map(str, arguments)])


def objects(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A log directory with one partition, ``my.topic-3``; the partition's path."""
    path = tmp_path / "my.topic-3"
    shutil.copytree(GOLDEN / "v2-txn", path)
    for name in (GOLDEN / "checkpoints").iterdir():
        if name.is_file():
            shutil.copy(name, tmp_path)
    return path


@for_each("folder", FOLDERS, name=lambda path: path.name)
def test_json_is_every_record(folder: Path) -> None:
    result = dump(next(folder.glob("*.log")), "--format", "json")
    assert result.exit_code == 0, result.stderr
    got = objects(result)
    batches = {line["position"]: line for line in lines(folder / "batches.jsonl")}
    expected = lines(folder / "records.jsonl")
    assert len(got) == len(expected)
    for ours, kafkas in zip(got, expected, strict=True):
        assert list(ours) == KEYS
        batch = batches[kafkas["batch"]]
        assert ours["topic"] is ours["partition"] is None  # the folder is not named like one
        for name in ("offset", "timestamp", "key", "value"):
            assert ours[name] == kafkas[name]
        assert ours["headers"] == kafkas.get("headers", [])
        assert ours["sequence"] == kafkas.get("sequence", -1)
        assert ours["leaderEpoch"] == batch.get("partitionLeaderEpoch", -1)
        for name in ("producerId", "producerEpoch"):
            assert ours[name] == batch.get(name, -1)
        for name in ("isTransactional", "isControl"):
            assert ours[name] == batch.get(name, False)
        assert ours["timestampType"] == batch["timestampType"]
        assert ours["compression"] == batch["compression"]


@for_each("folder", FOLDERS, name=lambda path: path.name)
def test_text_is_every_batch(folder: Path) -> None:
    log = next(folder.glob("*.log"))
    shallow = dump(log).stdout.splitlines()
    expected = lines(folder / "batches.jsonl")
    assert len(shallow) == len(expected)
    for line, batch in zip(shallow, expected, strict=True):
        assert f"lastOffset: {batch['lastOffset']} " in line
        assert f"position: {batch['position']} " in line
        assert f"size: {batch['size']} magic: {batch['magic']} " in line
        assert line.endswith(f"crc: {batch['crc']} isvalid: true")
    deep = dump(log, "--deep").stdout.splitlines()
    records = lines(folder / "records.jsonl")
    assert [line for line in deep if not line.startswith("| ")] == shallow
    assert [int(line.split()[2]) for line in deep if line.startswith("| ")] == [
        record["offset"] for record in records
    ]


def test_control_records_are_explained() -> None:
    text = dump(next((GOLDEN / "v2-txn").glob("*.log")), "--deep").stdout
    assert "endTxnMarker: COMMIT coordinatorEpoch: 7" in text
    assert "endTxnMarker: ABORT" in text
    text = dump(next((GOLDEN / "v2-kraft-control").glob("*.log")), "--deep").stdout
    assert "controlType: LEADER_CHANGE" in text


def test_hex_shows_the_fields_of_a_header() -> None:
    text = dump(next((GOLDEN / "v2-txn").glob("*.log")), "--format", "hex").stdout.splitlines()
    assert text[0] == "000000000000  00 00 00 00 00 00 13 88  baseOffset: 5000"
    assert text[4].endswith("crc: 557466276")
    assert text[13] == "00000000003d  160 bytes of records"
    legacy = dump(next((GOLDEN / "v1-none").glob("*.log")), "--format", "hex").stdout
    assert "magic: 1" in legacy


def test_ranges_of_offsets() -> None:
    log = next((GOLDEN / "v2-lz4").glob("*.log"))
    got = objects(dump(log, "--format", "json", "--from", "368800", "--to", "368803"))
    assert [record["offset"] for record in got] == [368800, 368801, 368802]
    shallow = dump(log, "--from", "368800", "--to", "368801").stdout.splitlines()
    assert len(shallow) == 1


@pytest.mark.parametrize("name", ["v2-txn", "v2-gzip", "v1-none"])
def test_indexes(name: str) -> None:
    folder = GOLDEN / name
    segment = json.loads((folder / "segment.json").read_text())["indexAfterRoll"]
    assert objects(dump(next(folder.glob("*.index")), "--format", "json")) == segment["offsetIndex"]
    times = objects(dump(next(folder.glob("*.timeindex")), "--format", "json"))
    assert times == segment["timeIndex"]
    assert dump(next(folder.glob("*.index"))).stdout.startswith("offset: ")


def test_zero_tails_of_preallocated_indexes(tmp_path: Path) -> None:
    for name, width in (("index", 8), ("timeindex", 12)):
        source = next((GOLDEN / "v2-txn").glob(f"*.{name}"))
        grown = tmp_path / source.name
        grown.write_bytes(source.read_bytes() + bytes(width * 100_000))
        assert dump(grown).stdout == dump(source).stdout
        grown.write_bytes(bytes(width * 1000))
        assert dump(grown).stdout == ""


def test_transaction_index_and_snapshot(partition: Path) -> None:
    aborted = objects(dump(next(partition.glob("*.txnindex")), "--format", "json"))
    rebuilt = json.loads((partition / "segment.json").read_text())["recover"]["abortedTxns"]
    assert aborted == [{name: entry[name] for name in aborted[0]} for entry in rebuilt]
    producers = objects(dump(next(partition.glob("*.snapshot")), "--format", "json"))
    assert {producer["producerId"] for producer in producers} == {1000, 2000, 3000, 4000, 5000}


def test_checkpoints(partition: Path) -> None:
    root = partition.parent
    for name in ("recovery-point", "log-start", "replication", "cleaner"):
        entries = objects(dump(root / f"{name}-offset-checkpoint", "--format", "json"))
        assert {"topic": "a.b_c-d", "partition": 3, "offset": 368769} in entries
    epochs = objects(dump(partition / "leader-epoch-checkpoint", "--format", "json"))
    assert epochs[0] == {"epoch": 3, "startOffset": 5000}
    topic = GOLDEN / "checkpoints" / "topic-0" / "partition.metadata"
    assert set(objects(dump(topic, "--format", "json"))[0]) == {"version", "topicId"}
    assert dump(root / ".kafka_cleanshutdown").stdout == "brokerEpoch: 42\n"
    meta = root / "meta.properties"
    meta.write_text("#\n#Tue Nov 14 22:13:20 UTC 2023\nnode.id=1\nversion=1\ncluster.id=abc\n")
    assert objects(dump(meta, "--format", "json")) == [
        {"version": 1, "clusterId": "abc", "nodeId": 1, "directoryId": None}
    ]


def test_directories(partition: Path) -> None:
    expected = lines(GOLDEN / "v2-txn" / "records.jsonl")
    for path in (partition, partition.parent):
        result = dump(path, "--format", "json")
        assert result.exit_code == 0
        got = objects(result)
        assert [record["offset"] for record in got] == [record["offset"] for record in expected]
        assert {(record["topic"], record["partition"]) for record in got} == {("my.topic", 3)}
    shutil.copy(next(partition.glob("*.log")), partition / "00000000000000009000.log.deleted")
    (partition.parent / f"gone-1.{'0' * 32}-delete").mkdir()
    text = dump(partition.parent).stdout
    assert "recovery-point-offset-checkpoint" in text
    assert text.count(".snapshot\n") == 1
    assert "deleted" not in text
    assert "gone" not in text


def test_segments_outside_the_range_are_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    path.mkdir()
    for base in (0, 10, 20):
        (path / f"{base:020d}.log").write_bytes(encode_batch([(b"k", b"v")] * 10, base_offset=base))
    text = dump(path, "--from", "12", "--to", "15", "--deep").stdout
    assert text.startswith(f"# {path / '00000000000000000010.log'}\n")
    assert text.count("# ") == 1
    assert text.count("| offset") == 3


def test_a_torn_tail_is_a_note(tmp_path: Path) -> None:
    whole = encode_batch([(b"k", b"v")])
    path = tmp_path / "00000000000000000000.log"
    for size in (1, 17, 40, len(whole) - 1):
        path.write_bytes(whole + encode_batch([(b"k", b"v")], base_offset=1)[:size])
        result = dump(path)
        assert result.exit_code == 0
        assert len(result.stdout.splitlines()) == 1
        assert f"torn tail of {size} bytes from byte {len(whole)}" in result.stderr


def test_a_zero_tail_is_a_note(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(encode_batch([(b"k", b"v")]) + bytes(3 << 20))
    result = dump(path)
    assert result.exit_code == 0
    assert f"{3 << 20} zero bytes" in result.stderr


def test_corruption_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    bad = tmp_path / "00000000000000000000.log"
    batches = [encode_batch([(b"k", b"v")], base_offset=i) for i in range(3)]
    batches[1][-1] ^= 1
    bad.write_bytes(b"".join(batches))
    worse = tmp_path / "00000000000000000005.log"
    worse.write_bytes(batches[0] + b"\xff" * 100)
    good = tmp_path / "00000000000000000009.log"
    good.write_bytes(batches[0])
    result = dump(bad, worse, good, "--deep")
    assert result.exit_code == 1
    assert result.stdout.count("isvalid: true") == 4
    assert result.stdout.count("isvalid: false") == 1
    assert result.stdout.count("| offset") == 4
    first, second = result.stderr.splitlines()
    assert first.startswith(f"corrupt: CorruptBatchError: {bad} at byte {len(batches[0])}: ")
    assert f"{worse} at byte {len(batches[0])}" in second
    as_json = dump(bad, "--format", "json")
    assert as_json.exit_code == 1
    assert [record["offset"] for record in objects(as_json)] == [0, 2]


def test_records_that_do_not_decode_are_told(tmp_path: Path) -> None:
    from logstore.kernels import seal_batch

    buffer = bytearray(61) + b"\x80\x80"
    seal_batch(
        buffer,
        base_offset=0,
        leader_epoch=0,
        attributes=1,
        last_offset_delta=0,
        base_timestamp=0,
        max_timestamp=0,
        record_count=1,
    )
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(buffer + encode_batch([(b"k", b"v")], base_offset=1))
    result = dump(path, "--deep")
    assert result.exit_code == 1
    assert "gzip" in result.stderr
    assert result.stdout.count("| offset") == 1


def test_other_damaged_files(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000000.snapshot").write_bytes(b"\0\1rubbish...")
    (tmp_path / "00000000000000000000.txnindex").write_bytes(b"\0\1" + bytes(32))
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n5\n0 0\n")
    for path in sorted(tmp_path.iterdir()):
        result = dump(path)
        assert result.exit_code == 1
        assert result.stderr.startswith("corrupt: ")
        assert "Traceback" not in result.output


def test_unusable_paths(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    good = tmp_path / "00000000000000000000.log"
    good.write_bytes(encode_batch([(b"k", b"v")]))
    result = dump(tmp_path / "missing.log", tmp_path / "notes.txt", good)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 2
    assert len(result.stdout.splitlines()) == 1


@pytest.mark.slow
def test_a_batch_larger_than_a_window(tmp_path: Path) -> None:
    big = encode_batch([(None, os.urandom(1 << 20))] * 6)
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(big + encode_batch([(b"k", b"v")], base_offset=6))
    result = dump(path)
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.splitlines()) == 2


def test_help_lists_the_command() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert "dump" in result.stdout
    assert CliRunner().invoke(main, ["no-such-command"]).exit_code == 2


@pytest.mark.slow
def test_as_a_program() -> None:
    log = next((GOLDEN / "v2-none").glob("*.log"))
    command = [sys.executable, "-m", "logstore", "dump", str(log), "--format", "json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(result.stdout.splitlines()) == 500
    # A reader that goes away, as `| head -1` does, is no error worth a word.
    with subprocess.Popen(
        [*command[:-2], "--deep"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""


class FakePoint:
    """An entry point of another package whose command raises ``error``."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def load(self) -> click.Command:
        @click.command()
        def broken() -> None:
            raise self.error

        return broken


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConfigError("no such key"), "error: no such key\n"),
        (CheckpointFailedError("x", "read", "gone"), "error: x: read"),
        (OSError(5, "Input/output error", "x.log"), "error: [Errno 5]"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_typed_errors_are_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception, expected: str
) -> None:
    monkeypatch.setattr("logstore.cli._points", lambda: {"broken": FakePoint(error)})
    result = CliRunner().invoke(main, ["broken"])
    assert result.exit_code == 2
    assert result.stderr.startswith(expected)
    assert len(result.stderr.splitlines()) == 1
    assert "broken" in CliRunner().invoke(main, ["--help"]).stdout


@pytest.mark.parametrize("kind", [InvariantError, ValueError])
def test_a_mistake_in_logstore_keeps_its_traceback_printable(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    point = FakePoint(kind("impossible: \x1b[2J\nerror: 0"))
    monkeypatch.setattr("logstore.cli._points", lambda: {"broken": point})
    result = CliRunner().invoke(main, ["broken"])
    assert result.exit_code == 2
    first, *_, last = result.stderr.splitlines()
    assert first == "Traceback (most recent call last):"
    assert last.endswith(kind.__name__ + r": impossible: \x1b[2J\nerror: 0")


@pytest.mark.parametrize("suffix", [".txnindex", ".index", ".timeindex"])
def test_an_index_has_no_more_entries_than_its_log_has_room_for(
    partition: Path, suffix: str
) -> None:
    index = next(partition.glob(f"*{suffix}"))
    index.write_bytes((b"\0\0" + b"\1" * 32) * 15_000)
    result = dump(index)
    assert result.exit_code == 1
    most = index.with_suffix(".log").stat().st_size // 26 + 1
    assert f"at most {most} entries" in result.stderr
    assert len(result.stdout.splitlines()) <= most


def test_a_sparse_transaction_index_ends_at_its_zeros(partition: Path) -> None:
    index = next(partition.glob("*.txnindex"))
    before = len(dump(index).stdout.splitlines())
    end = index.stat().st_size
    for path in (index, index.with_name(f"{77:020}.txnindex")):  # the other has no log beside it
        with path.open("ab") as file:
            file.truncate(1 << 40)
    result = dump(index, index.with_name(f"{77:020}.txnindex"))
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == before
    assert f"byte {end}" in result.stderr
    assert result.stderr.count("zeros, which are no entry") == 2


@pytest.mark.parametrize("form", ["text", "json", "hex"])
def test_a_log_too_large_for_a_segment_is_refused_unread(tmp_path: Path, form: str) -> None:
    log = tmp_path / "orders-0" / f"{0:020}.log"
    log.parent.mkdir()
    shutil.copy(next((GOLDEN / "v1-none").glob("*.log")), log)
    os.truncate(log, 1 << 40)
    result = dump(log.parent, "--format", form)
    assert result.exit_code == 2
    assert result.stdout == (f"# {log}\n" if form == "text" else "")
    assert result.stderr == f"error: {log}: {1 << 40} bytes are too many for a segment\n"


class _CutSince:
    """A file of which another process has cut off ``more`` bytes since its size was asked for."""

    def __init__(self, file: File, more: int) -> None:
        self._file, self._more, self.path = file, more, file.path
        self.view, self.read_at = file.view, file.read_at

    def size(self) -> int:
        return self._file.size() + self._more


@for_each("more, left", product([1, 12, 100, 1 << 20, 1 << 30], [0, 5, 11, 40]))
def test_a_file_that_is_cut_while_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: int, left: int
) -> None:
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(encode_batch([(b"k", b"v", 1)]) + encode_batch([(b"k", b"v", 1)])[:left])
    with closing(LocalStorage().open(str(path), writable=False)) as file:
        dump_log(cast("File", _CutSince(file, more)), None, Output("text", False, 0, MAX_OFFSET))
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 1
    assert "cut while it was read" in shown.err or "torn tail" in shown.err
