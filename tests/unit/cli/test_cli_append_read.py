"""``logstore append`` and ``logstore read``: a shell writes and reads a log."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from logstore import LogConfig, LogManager
from logstore.cli import main
from logstore.cli.records.input import BadInputError, input_lines, parse_json
from logstore.common.clock import SystemClock
from logstore.common.partitioner import murmur2
from logstore.format.batch import encode_batch, end_transaction_marker
from logstore.format.control import ControlType
from logstore.log import LogOwner, PartitionLog
from logstore.segments.producer_state import AppendOrigin
from tests.support.cases import for_each
from tests.support.until import patience

GOLDEN = Path(__file__).parents[2] / "golden" / "data"


def run(*arguments: str | Path, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)], input=stdin)


def append(*arguments: str | Path, stdin: bytes) -> Result:
    return run("append", *arguments, stdin=stdin)


def read(*arguments: str | Path) -> bytes:
    result = run("read", *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes


def objects(*arguments: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read(*arguments, "--format", "json").splitlines()]


def offsets(*arguments: str | Path) -> list[int]:
    return [record["offset"] for record in objects(*arguments)]


def make_log(directory: Path, count: int, batch: int = 10, **config: Any) -> None:
    """Topic ``t`` with one partition: keys, values and timestamps count from 0."""
    with LogManager([directory], LogConfig(retention_ms=-1, **config)) as manager:
        log = manager.get_or_create("t", 0)
        for start in range(0, count, batch):
            log.append([(b"k%d" % i, b"v%d" % i, i) for i in range(start, start + batch)])


# -- append ----------------------------------------------------------------------------------------


def test_lines_come_back(tmp_path: Path) -> None:
    result = append(tmp_path, "t", stdin=b"one\n\nthree\r\n\xff\xfe\nlast")
    assert result.exit_code == 0, result.output
    assert result.stdout == "t-0: 5 records, offsets 0 to 4\n"
    assert read(tmp_path, "t") == b"one\n\nthree\r\n\xff\xfe\nlast\n"
    assert read(tmp_path, "t", "--format", "raw") == b"onethree\r\xff\xfelast"
    assert append(tmp_path, "t", stdin=b"x\n").stdout == "t-0: 1 record, offsets 5 to 5\n"


def test_keys_decide_the_partition_as_in_kafka(tmp_path: Path) -> None:
    keys = [b"key%d" % i for i in range(40)]
    lines = b"".join(key + b"=v=" + key + b"\n" for key in keys)
    result = append(tmp_path, "t", "--partitions", "3", "--key-separator", "=", stdin=lines)
    assert result.exit_code == 0, result.output
    for partition in range(3):
        mine = [key for key in keys if (murmur2(key) & 0x7FFFFFFF) % 3 == partition]
        shown = read(tmp_path, "t", "--partition", str(partition), "--key-separator", "->")
        assert shown.splitlines() == [key + b"->v=" + key for key in mine]


def test_a_dump_or_read_can_be_appended_elsewhere(tmp_path: Path) -> None:
    records = [
        {"key": None, "value": "AAH/", "timestamp": 5, "headers": [["h", None], ["", "eA=="]]},
        {"key": "", "value": None, "timestamp": -1, "headers": []},
        {"key": "a2V5", "value": "", "timestamp": 7, "headers": [["ü", ""]], "offset": 99},
    ]
    first, second, third = tmp_path / "1", tmp_path / "2", tmp_path / "3"
    text = "\n\n".join(map(json.dumps, records)).encode()
    assert append(first, "t", "--format", "json", stdin=text).exit_code == 0
    copy = read(first, "t", "--format", "json")
    shown = [json.loads(line) for line in copy.splitlines()]
    for at, (record, back) in enumerate(zip(records, shown, strict=True)):
        assert back == record | {"topic": "t", "partition": 0, "offset": at}
    assert append(second, "t", "--format", "json", stdin=copy).exit_code == 0
    assert read(second, "t", "--format", "json") == copy
    dumped = run("dump", first / "t-0", "--format", "json").stdout_bytes
    options = ("--format", "json", "--compression", "zstd", "--flush", "--batch", "2")
    assert append(third, "t", *options, stdin=dumped).exit_code == 0
    assert read(third, "t", "--format", "json") == copy


def test_records_without_timestamp_get_the_present(tmp_path: Path) -> None:
    before = SystemClock().wall_ms()
    append(tmp_path, "t", "--format", "json", stdin=b'{"value": "YQ=="}')
    (record,) = objects(tmp_path, "t")
    assert before <= record["timestamp"] <= SystemClock().wall_ms()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compression(tmp_path: Path, codec: str) -> None:
    lines = b"".join(b"the same line again\n" for _ in range(3000))
    result = append(tmp_path, "t", "--compression", codec, "--batch", "999", stdin=lines)
    assert result.exit_code == 0, result.output
    assert read(tmp_path, "t") == lines
    assert (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size < len(lines) / 2
    assert offsets(tmp_path, "t", "--from", "1500", "--to", "1502") == [1500, 1501]


@for_each(
    "line, message",
    [
        (b"{bad", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"{}", 'the object has no "value"'),
        (b'{"value": 1}', "value is neither base64 nor null"),
        (b'{"value": "a b="}', "value is not base64"),
        (b'{"value": "\xc3\xbc"}', "value is not base64"),
        (b'{"value": null, "key": "%"}', "key is not base64"),
        (b'{"value": null, "timestamp": "1"}', "timestamp is no number"),
        (b'{"value": null, "timestamp": true}', "timestamp is no number"),
        (b'{"value": null, "timestamp": -2}', "timestamp is no number"),
        (b'{"value": null, "headers": {"a": "b"}}', "headers are no list"),
        (b'{"value": null, "headers": [["a"]]}', "a header is no pair"),
        (b'{"value": null, "headers": [["\\ud800", null]]}', "not Unicode"),
        (b"\xff", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_malformed_json_ends_it_and_keeps_what_came_before(
    tmp_path: Path, line: bytes, message: str
) -> None:
    good = b'{"value": "YQ=="}\n'
    result = append(tmp_path, "t", "--format", "json", stdin=good * 2 + line + b"\n" + good)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: line 3: ")
    assert message in result.stderr
    assert result.stderr.endswith("; 2 records before it appended\n")
    assert result.stderr.count("\n") == 1
    assert result.stdout == "t-0: 2 records, offsets 0 to 1\n"
    assert offsets(tmp_path, "t") == [0, 1]


def test_control_records_of_a_dump_are_left_out() -> None:
    assert parse_json(b'{"value": "AAA=", "isControl": true}') is None


def test_a_record_that_the_log_refuses(tmp_path: Path) -> None:
    huge = base64.b64encode(bytes(2_000_000)).decode()
    lines = "\n".join(json.dumps({"value": v}) for v in ("YQ==", huge, "YQ=="))
    result = append(tmp_path, "t", "--format", "json", stdin=lines.encode())
    assert result.exit_code == 2
    assert "line 2: RecordTooLargeError" in result.stderr
    assert "1 record before it appended" in result.stderr
    assert offsets(tmp_path, "t") == [0]


def test_large_records_are_split_over_batches(tmp_path: Path) -> None:
    lines = b"".join(b"%d" % i * 300_000 + b"\n" for i in range(1, 10))
    assert append(tmp_path, "t", stdin=lines).exit_code == 0
    assert read(tmp_path, "t") == lines


def test_report_as_json(tmp_path: Path) -> None:
    result = append(tmp_path, "t", "--partitions", "2", "--partition", "0", stdin=b"")
    assert result.exit_code == 2
    result = append(tmp_path, "t", "--partition", "0", "--json", stdin=b"a\nb\n")
    assert json.loads(result.stdout) == [
        {"topic": "t", "partition": 0, "records": 2, "firstOffset": 0, "lastOffset": 1}
    ]


def test_partitions_of_one_topic_share_its_id(tmp_path: Path) -> None:
    for partition in ("0", "1", "2"):
        append(tmp_path, "t", "--partition", partition, stdin=b"a\n")
    texts = {(tmp_path / f"t-{p}" / "partition.metadata").read_text() for p in range(3)}
    assert len(texts) == 1
    shutil.rmtree(tmp_path / "t-1")
    result = append(tmp_path, "t", stdin=b"a\n")
    assert result.exit_code == 2
    assert "only partitions [0, 2] of t are here" in result.stderr


@for_each(
    "arguments, message",
    [
        (["t", "--batch", "0"], "give a number from 1"),
        (["t", "--batch", "9" * 30], "give a number from 1"),
        (["t", "--partitions", "0"], "give a number from 1 to 10000"),
        (["t", "--partition", "-1"], "give a number from 0"),
        (["t", "--partition", "x"], "not a whole number"),
        (["t", "--partition", "1"], "would leave a hole: t is not here"),
        (["old", "--partition", "2"], "would leave a hole: old has partitions [0] here"),
        (["t", "--config", "retention.ms"], "give KEY=VALUE"),
        (["t", "--config", "no.key=1"], "unknown configuration key"),
        (["t", "--config", "segment.bytes=" + "9" * 30], "above its maximum"),
        (["t", "--config", "segment.ms=1", "--config", "segment.ms=2"], "given twice"),
        (["old", "--config", "segment.ms=1"], "old is there already: logstore alter"),
        (["t", "--header", "\udcff=1"], "the name is not Unicode"),
        (["t", "--format", "json", "--key-separator", ","], "for lines only"),
        (["t", "--key-separator", ""], "--key-separator is empty"),
        (["no good"], "topic name 'no good' has characters outside"),
        (["old", "--partitions", "7"], "old has 1 partitions here, not 7"),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: list[str], message: str) -> None:
    append(tmp_path, "old", stdin=b"a\n")
    result = append(tmp_path, *arguments, stdin=b"a\n")
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        result = append(path, "t", stdin=b"a\n")
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
    with LogManager([tmp_path / "held"]):
        result = append(tmp_path / "held", "t", stdin=b"a\n")
    assert result.exit_code == 2
    assert "is locked by this process" in result.stderr


def test_input_that_pauses_is_appended_at_once(tmp_path: Path) -> None:
    """An empty list says that the writer on the other end of a pipe waits."""
    source, sink = os.pipe()
    with open(source, "rb") as stream, open(sink, "wb", buffering=0) as pipe:
        pipe.write(b"a\nb\nc")
        lines = input_lines(stream)
        assert [next(lines), next(lines)] == [[b"a", b"b"], []]
        pipe.write(b"d\n")
        assert next(lines) == [b"cd"]
        pipe.write(b"e")
        pipe.close()
        assert list(lines) == [[b"e"]]


def test_a_long_line_is_searched_once() -> None:
    """Else this takes a minute, which the limit of a test does not allow."""
    part, count = b"x" * (1 << 14), 2000
    reads = [*[part] * count, b"y;", b";z;", b";", b""]
    stream = mock.Mock(**{"read1.side_effect": reads, "fileno.side_effect": OSError})
    assert list(input_lines(stream, b";;")) == [[part * count + b"y"], [b"z"]]


def test_an_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("logstore.cli.records.input._LINE_BYTES_MAX", 1000)
    path = tmp_path / "lines"
    path.write_bytes(b"a\n" + bytes(2000))
    with open(path, "rb") as stream:
        lines = input_lines(stream)
        assert next(lines) == [b"a"]
        with pytest.raises(BadInputError, match="longer than 1000 bytes"):
            next(lines)


# -- read ------------------------------------------------------------------------------------------


def test_ranges(tmp_path: Path) -> None:
    make_log(tmp_path, 200, segment_bytes=1000, message_timestamp_after_max_ms=2**60)
    assert len(list((tmp_path / "t-0").glob("*.log"))) > 3
    assert offsets(tmp_path, "t") == list(range(200))
    assert offsets(tmp_path, "t", "--from", "195") == [195, 196, 197, 198, 199]
    assert offsets(tmp_path, "t", "--from", "57", "--to", "60") == [57, 58, 59]
    assert offsets(tmp_path, "t", "--from", "57", "--max", "2") == [57, 58]
    assert offsets(tmp_path, "t", "--from", "earliest", "--max", "1") == [0]
    assert offsets(tmp_path, "t", "--from", "latest") == []
    assert offsets(tmp_path, "t", "--from", "5000") == []
    assert offsets(tmp_path, "t", "--from", "@123", "--max", "1") == [123]
    assert offsets(tmp_path, "t", "--from", "@200") == []
    assert read(tmp_path, "t", "--max", "2", "--key-separator", ":") == b"k0:v0\nk1:v1\n"


def test_null_is_null(tmp_path: Path) -> None:
    with LogManager([tmp_path]) as manager:
        manager.get_or_create("t", 0).append([(None, None)])
    assert read(tmp_path, "t", "--key-separator", ":") == b"null:null\n"
    assert read(tmp_path, "t", "--format", "raw") == b""


def test_deleted_records_are_not_read(tmp_path: Path) -> None:
    with LogManager([tmp_path]) as manager:
        log = manager.get_or_create("t", 0)
        log.append([(None, b"%d" % i) for i in range(10)])
        log.delete_records(4)
    assert offsets(tmp_path, "t") == [4, 5, 6, 7, 8, 9]
    result = run("read", tmp_path, "t", "--from", "1", "--max", "1")
    assert result.stdout == "4\n"
    assert result.stderr == "note: t-0 begins at offset 4\n"


def test_a_directory_in_use_is_read_and_left_alone(tmp_path: Path) -> None:
    with LogManager(
        [tmp_path], LogConfig(preallocate=True, segment_bytes=1 << 20), background=False
    ) as manager:
        log = manager.get_or_create("t", 0)
        for i in range(3):
            log.append([(None, b"%d" % i)])
            assert offsets(tmp_path, "t") == list(range(i + 1))
        log.flush()  # nothing is left to be written in the background
        before = sorted(p.name for p in tmp_path.rglob("*"))
        assert offsets(tmp_path, "t", "--from", "latest") == []
        assert sorted(p.name for p in tmp_path.rglob("*")) == before


def _rolled(directory: Path) -> list[Path]:
    """Leave a log as ``kill -9`` does before any roll is settled; the files of the rolls."""
    config = LogConfig(segment_bytes=1000)
    log = PartitionLog.open(
        directory / "t-0", config, owner=LogOwner(managed=True, background=lambda task: None)
    )
    for _ in range(12):
        log.append([(None, bytes(300))])
    log.crash()
    return sorted((directory / "t-0").glob("*.log.swap"))


def test_rolls_that_wait_for_their_names_are_read(tmp_path: Path) -> None:
    assert len(_rolled(tmp_path)) > 2
    assert offsets(tmp_path, "t") == list(range(12))
    assert read(tmp_path, "t", "--from", "latest") == b""


def test_a_roll_behind_a_lost_tail_is_not_read(tmp_path: Path) -> None:
    first, *_ = _rolled(tmp_path)
    before = first.with_name(f"{0:020}.log")
    os.truncate(before, before.stat().st_size // 2)
    result = run("read", tmp_path, "t", "--format", "json")
    assert result.exit_code == 0
    assert [json.loads(line)["offset"] for line in result.stdout.splitlines()] == [0]
    assert f"{first}: does not follow" in result.stderr


def test_a_torn_tail_is_the_end(tmp_path: Path) -> None:
    make_log(tmp_path, 30)
    path = tmp_path / "t-0" / f"{0:020d}.log"
    whole = path.read_bytes()
    third = whole.rindex(b"v20") // 1  # inside the last batch
    for size in (third, third - 30, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert offsets(tmp_path, "t") == list(range(20))
    for tail in (bytes(5), bytes(5000)):
        path.write_bytes(whole + tail)
        assert offsets(tmp_path, "t") == list(range(30))


def test_damage_is_told_with_its_place(tmp_path: Path) -> None:
    make_log(tmp_path, 30)
    path = tmp_path / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[data.index(b"v15")] ^= 1
    path.write_bytes(data)
    result = run("read", tmp_path, "t", "--format", "json")
    assert result.exit_code == 1
    assert [json.loads(line)["offset"] for line in result.stdout.splitlines()] == list(range(10))
    assert result.stderr.startswith(f"corrupt: {path} at byte ")
    assert result.stderr.count("\n") == 1


def test_a_torn_segment_before_another_is_damage(tmp_path: Path) -> None:
    make_log(tmp_path, 100, segment_bytes=1000, message_timestamp_after_max_ms=2**60)
    first = min((tmp_path / "t-0").glob("*.log"))
    first.write_bytes(first.read_bytes()[:-1])
    result = run("read", tmp_path, "t")
    assert result.exit_code == 1
    assert "where one should end" in result.stderr


def test_a_batch_larger_than_a_window(tmp_path: Path) -> None:
    config = LogConfig(max_message_bytes=64 << 20)
    with LogManager([tmp_path], config) as manager:
        log = manager.get_or_create("t", 0)
        log.append([(None, bytes(6 << 20)), (None, b"a")])
        log.append([(None, b"b")])
    assert read(tmp_path, "t", "--from", "1") == b"a\nb\n"
    assert offsets(tmp_path, "t", "--from", "latest") == []


@for_each("folder", sorted(GOLDEN.glob("v*")), name=lambda path: path.name)
def test_logs_that_kafka_wrote(tmp_path: Path, folder: Path) -> None:
    shutil.copytree(folder, tmp_path / "t-0")
    expected = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    batches = [json.loads(line) for line in (folder / "batches.jsonl").read_text().splitlines()]
    control = {b["position"] for b in batches if b.get("isControl")}
    wanted = [(r["offset"], r["value"]) for r in expected if r["batch"] not in control]
    shown = [(r["offset"], r["value"]) for r in objects(tmp_path, "t")]
    assert shown == wanted


def committed_by_the_log(directory: Path) -> list[int]:
    """What ``PartitionLog`` itself gives a reader of committed data."""
    found: list[int] = []
    with PartitionLog.open(directory, LogConfig(retention_ms=-1)) as log:
        position = log.log_start_offset
        while position < log.last_stable_offset:
            fetched = log.read(position, 1 << 30, committed=True)
            found += [record.offset for record in fetched.records()]
            position = fetched.end_offset
    return found


def test_committed_as_kafka_wrote_it(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "v2-txn", tmp_path / "t-0")
    shown = offsets(tmp_path, "t", "--committed")
    assert 0 < len(shown) < len(offsets(tmp_path, "t"))
    assert shown == committed_by_the_log(tmp_path / "t-0")


def test_committed_ends_before_an_open_transaction(tmp_path: Path) -> None:
    def data(value: bytes, producer: int, sequence: int = 0) -> bytearray:
        return encode_batch(
            [(None, value, 1)],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )

    def end(kind: ControlType, producer: int) -> bytearray:
        return end_transaction_marker(
            kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=1
        )

    with LogManager([tmp_path]) as manager:
        log = manager.get_or_create("t", 0)
        log.append_as_leader(data(b"committed", 1), 0)
        log.append_as_leader(data(b"aborted", 2), 0)
        log.append_as_leader(end(ControlType.ABORT, 2), 0, AppendOrigin.COORDINATOR)
        log.append_as_leader(end(ControlType.COMMIT, 1), 0, AppendOrigin.COORDINATOR)
        log.append([(None, b"plain")])
        log.append_as_leader(data(b"open", 3), 0)
        log.append([(None, b"behind it")])
    assert read(tmp_path, "t", "--committed") == b"committed\nplain\n"
    assert read(tmp_path, "t", "--committed", "--from", "1") == b"plain\n"
    assert len(read(tmp_path, "t").splitlines()) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "there is no topic 'none' in it"),
        (["t", "--partition", "4"], "there is no partition 4 of 't', only [0]"),
        (["t", "--from", "soon"], "give an offset, earliest, latest"),
        (["t", "--from", "-0"], "give an offset, earliest, latest"),
        (["t", "--max", "0"], "give a number from 1"),
        (["t", "--follow", "--committed"], "cannot be combined"),
    ],
)
def test_bad_arguments_of_read(tmp_path: Path, arguments: list[str], message: str) -> None:
    make_log(tmp_path, 10)
    result = run("read", tmp_path, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_no_directory(tmp_path: Path) -> None:
    result = run("read", tmp_path / "none", "t")
    assert result.exit_code == 2
    assert "no such directory" in result.stderr


@pytest.mark.slow
def test_follow_sees_what_is_appended_and_rolled(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=1000, retention_ms=-1)
    with LogManager([tmp_path], config) as manager:
        log = manager.get_or_create("t", 0)
        log.append([(None, b"first")])
        command = [sys.executable, "-m", "logstore", "read", str(tmp_path), "t", "--follow"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"first\n"
            for i in range(50):
                log.append([(None, b"%d" % i * 20)])
            assert len(log.segments) > 3
            shown = [process.stdout.readline() for _ in range(50)]
            assert shown == [b"%d" % i * 20 + b"\n" for i in range(50)]
            process.send_signal(signal.SIGINT)
            assert process.wait(patience()) == 130
            assert process.stderr.read() == b"\n"


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    make_log(tmp_path, 50_000, batch=1000)
    command = [sys.executable, "-m", "logstore", "read", str(tmp_path), "t"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"v0\n"
        process.stdout.close()
        assert process.stderr.read() == b""


def directory_of_a_broker(directory: Path) -> Path:
    """Old records of two topics, half of them committed. No file says that all are to be kept."""
    config = LogConfig(retention_ms=-1, segment_bytes=200)
    with LogManager([directory], config, background=False) as manager:
        for topic in ("t", "u"):
            log = manager.get_or_create(topic, 0)
            for i in range(10):
                log.append([(b"k", b"v" * 100, i)])
    marks = directory / "replication-offset-checkpoint"
    marks.write_text("0\n2\nt 0 5\nu 0 5\n")
    return marks


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        (("t",), {"t": range(11), "u": range(10)}),
        (("new",), {"t": range(10), "u": range(10), "new": range(1)}),
        (("new", "--config", "retention.ms=1"), {"t": range(10), "u": range(10), "new": range(0)}),
    ],
    ids=["appended to", "beside", "with a configuration"],
)
def test_what_others_keep_in_the_directory_is_left_as_it_is(
    command: tuple[str, ...],
    kept: dict[str, range],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their configurations are elsewhere, and so are the replicas that have to confirm."""
    marks = directory_of_a_broker(tmp_path)
    close = LogManager.close

    def close_late(manager: LogManager) -> None:
        manager.housekeeper.clean_up()
        close(manager)

    monkeypatch.setattr(LogManager, "close", close_late)
    old = b'{"value": "eA==", "timestamp": 0}\n'
    assert append(tmp_path, *command, "--format", "json", stdin=old).exit_code == 0
    for topic, wanted in kept.items():
        assert offsets(tmp_path, topic) == [*wanted]
    own = {"t": 11, "u": 5} if command[0] == "t" else {"t": 5, "u": 5, "new": 1}
    lines = marks.read_text().splitlines()[2:]
    assert sorted(lines) == sorted(f"{topic} 0 {mark}" for topic, mark in own.items())


@for_each("command", [("read", "t", "--from", "150"), ("export", "t", "--to", "t.jsonl"), ("ls",)])
def test_what_a_reader_warns_of_is_a_note_and_is_said_once(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    logs = tmp_path / "logs"
    make_log(logs, 200, index_interval_bytes=0)
    (logs / "meta.properties").write_text("version=1\n")
    (logs / "replication-offset-checkpoint").write_bytes(b"0\n9\n")
    index = logs / "t-0" / f"{0:020}.index"
    index.write_bytes(bytes(7) + b"\x01" + index.read_bytes()[8:])
    (logs / "t-0" / "partition.metadata").write_text("version: 0\n")
    name, *rest = command
    rest = [str(tmp_path / each) if each.endswith(".jsonl") else each for each in rest]
    found = run(name, logs, *rest)
    assert found.exit_code == 0, found.output
    said = found.stderr.splitlines()
    assert len(said) >= 2
    assert [line for line in said if not line.startswith("note: ")] == []
    assert len(said) == len(set(said))
