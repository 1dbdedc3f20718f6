"""``logstore mirror``: as it is called, as it ends, and what it shows meanwhile."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.pytest_plugin import logstore_kafka, make_logstore_kafka
from replication import ServedCluster
from replication.cli import mirror_process
from replication.mirror import MirroredStatus, MirrorStatus, PartitionState
from replication.mirror.continuous_backup import BackupStatus, ContinuousBackup
from replication.mirror.observing import PARTITIONS_MAX, MirrorView, problems, samples, summary
from tests.support.commands import argv_of, logstore
from tests.support.mirrors import mirror_of
from tests.support.until import patience, until

__all__ = ["logstore_kafka", "make_logstore_kafka"]

ROOT = Path(__file__).resolve().parents[3]
TP = TopicPartition("orders", 0)


def once(kafka: ServedCluster, directory: Path, *arguments: str, code: int = 0) -> Any:
    given = ["--from", kafka.bootstrap_servers, "--dir", str(directory), "--once", *arguments]
    return logstore("mirror", *given, code=code)


def check(kafka: ServedCluster, directory: Path, code: int = 0) -> Any:
    given = ["--from", kafka.bootstrap_servers, str(directory)]
    return logstore("mirror", "check", *given, code=code).stdout


@contextmanager
def mirroring(kafka: ServedCluster, directory: Path, *arguments: str) -> Iterator[tuple[Any, Any]]:
    """The process, and the line that it prints when it has begun."""
    given = ("--from", kafka.bootstrap_servers, "--dir", str(directory), "--json", *arguments)
    command = argv_of("mirror", *given)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def page(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address + path, timeout=patience()) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_once_and_once_more(logstore_kafka: ServedCluster, tmp_path: Path) -> None:
    logstore_kafka.create_topic("orders")
    logstore_kafka.produce("orders", b"one")
    told = once(logstore_kafka, tmp_path / "mirror")
    assert "1 of 1 partitions caught up, lag 0" in told.stdout
    assert "equal" in check(logstore_kafka, tmp_path / "mirror")
    logstore_kafka.produce("orders", b"two")
    logstore_kafka.produce("orders", b"three")
    assert "; 2 offsets were not compared" in check(logstore_kafka, tmp_path / "mirror")
    once(logstore_kafka, tmp_path / "mirror")
    assert "3 offsets" in check(logstore_kafka, tmp_path / "mirror")
    assert "1 of 1 partitions caught up" in once(logstore_kafka, tmp_path / "mirror").stdout
    read = logstore("read", str(tmp_path / "mirror"), "orders", "--from", "0").stdout
    assert [line for line in read.splitlines() if line] == ["one", "two", "three"]


def test_topics_by_patterns(logstore_kafka: ServedCluster, tmp_path: Path) -> None:
    for topic in ("orders", "orders.eu", "bills"):
        logstore_kafka.create_topic(topic)
    once(logstore_kafka, tmp_path / "mirror", "--topics", r"orders(\..*)?")
    listed = {each.name for each in (tmp_path / "mirror").iterdir() if each.is_dir()}
    assert listed == {"orders-0", "orders.eu-0"}
    said = check(logstore_kafka, tmp_path / "mirror")
    assert "2 of 2 partitions compared (2 empty), 0 offsets" in said
    shutil.rmtree(tmp_path / "mirror" / "orders.eu-0")
    said = check(logstore_kafka, tmp_path / "mirror")
    assert "not compared: orders.eu-0: not here\n1 of 2 partitions compared (1 empty)" in said
    assert "bills" not in check(logstore_kafka, tmp_path / "mirror")  # was not to be here


def test_a_pattern_that_matches_nothing_is_named(
    logstore_kafka: ServedCluster, tmp_path: Path
) -> None:
    logstore_kafka.create_topic("orders")
    patterns = ("--topics", "orders", "--topics", "bils", "--topics", "b.*")
    told = once(logstore_kafka, tmp_path / "mirror", *patterns, code=1)
    assert "no topic of the source matches --topics bils or b.*\n" in told.stderr
    assert "1 of 1 partitions caught up" in told.stdout
    given = ("--from", logstore_kafka.bootstrap_servers, str(tmp_path / "mirror"))
    told = logstore("mirror", "check", *given, "--topics", "x", code=2)
    assert "no topic matches --topics x, here" in told.stderr


def test_a_backup_in_the_mirror_is_refused(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    (tmp_path / "link").symlink_to(tmp_path)
    for store in (mirror, mirror / "backup", tmp_path, tmp_path / "link" / "mirror"):
        given = ("--from", "127.0.0.1:1", "--dir", str(mirror), "--backup", str(store))
        assert "lie apart" in logstore("mirror", *given, code=2).stderr
    assert not mirror.exists()


def test_what_the_source_deleted_first_is_a_finding(
    logstore_kafka: ServedCluster, tmp_path: Path
) -> None:
    (tp,) = logstore_kafka.create_topic("orders")
    for value in (b"one", b"two", b"three"):
        logstore_kafka.produce("orders", value)
        if value == b"one":
            once(logstore_kafka, tmp_path / "mirror")
    log = logstore_kafka.broker(0).log_manager.get(*tp)
    log.delete_records(2)
    told = once(logstore_kafka, tmp_path / "mirror", code=1)
    assert "lost: orders-0 1…1" in told.stdout
    report = (tmp_path / "mirror" / "mirror-report.jsonl").read_text()
    events = [json.loads(line) for line in report.splitlines()]
    assert [(each["kind"], each["from"], each["to"]) for each in events] == [("lost", 1, 2)]
    once(logstore_kafka, tmp_path / "mirror")  # told once
    check(logstore_kafka, tmp_path / "mirror")


def test_a_backup_beside_it(logstore_kafka: ServedCluster, tmp_path: Path) -> None:
    """Once it has ended, the store has all that the mirror has."""
    logstore_kafka.create_topic("orders")
    logstore_kafka.produce("orders", b"one")
    once(logstore_kafka, tmp_path / "mirror", "--backup", str(tmp_path / "store"))
    logstore_kafka.produce("orders", b"two")
    once(logstore_kafka, tmp_path / "mirror", "--backup", str(tmp_path / "store"))
    assert len([*(tmp_path / "store" / "logstore-backup").iterdir()]) == 2
    logstore_kafka.produce("orders", b"three")
    keeping = ("--backup", str(tmp_path / "store"), "--backup-keep", "1")
    once(logstore_kafka, tmp_path / "mirror", *keeping)
    assert len([*(tmp_path / "store" / "logstore-backup").iterdir()]) == 1
    logstore("restore", str(tmp_path / "store"), "--to", str(tmp_path / "back"))
    assert "1 of 1 partitions compared, 3 offsets" in check(logstore_kafka, tmp_path / "back")


def test_a_store_that_refuses_is_an_error_of_one_run(
    logstore_kafka: ServedCluster, tmp_path: Path
) -> None:
    logstore_kafka.create_topic("orders")
    logstore_kafka.produce("orders", b"one")
    (tmp_path / "store").write_text("no directory")
    told = once(logstore_kafka, tmp_path / "mirror", "--backup", str(tmp_path / "store"), code=2)
    assert "no backup: " in told.stderr
    assert "1 offsets" in check(logstore_kafka, tmp_path / "mirror")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_cleanly(
    number: signal.Signals, code: int, logstore_kafka: ServedCluster, tmp_path: Path
) -> None:
    logstore_kafka.create_topic("orders")
    with mirroring(logstore_kafka, tmp_path / "mirror", "--http", "127.0.0.1:0") as (process, told):
        for value in range(10):
            logstore_kafka.produce("orders", b"%d" % value)

        def has_all() -> bool:
            (orders,) = json.loads(page(told["http"], "state")[1])["partitions"] or [{}]
            return (orders.get("logEndOffset"), orders.get("lag")) == (10, 0)

        until(has_all)
        until(lambda: page(told["http"], "health")[0] == 200)
        metrics = page(told["http"], "metrics")[1]
        for name in ("lag_records", "bytes_total", "cuts_total", "seconds_since_answer"):
            assert f"\nlogstore_mirror_{name} " in metrics
        assert 'logstore_mirror_partition_lag_records{partition="0",topic="orders"}' in metrics
        assert page(told["http"], "other")[0] == 404

        second = once(logstore_kafka, tmp_path / "mirror", code=2)
        assert "lock" in second.stderr
        check(logstore_kafka, tmp_path / "mirror")  # it is compared while it runs

        process.send_signal(number)
        out, err = process.communicate(timeout=patience())
    assert (process.returncode, err) == (code, "")
    last = json.loads(out.splitlines()[-1])
    assert (last["caughtUp"], last["lag"], last["problems"]) == (1, 0, [])
    assert (tmp_path / "mirror" / ".kafka_cleanshutdown").exists()


def test_another_cluster_is_refused(
    make_logstore_kafka: Callable[..., ServedCluster], tmp_path: Path
) -> None:
    one, other = make_logstore_kafka(), make_logstore_kafka()
    one.create_topic("orders")
    once(one, tmp_path / "mirror")
    assert "cluster" in once(other, tmp_path / "mirror", code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "Missing option '--from'"),
        (("--from", "127.0.0.1:1"), "Missing option '--dir'"),
        (("--from", "127.0.0.1:1", "--dir", "mirror"), "127.0.0.1:1"),
        (("--from", "127.0.0.1:1", "--dir", "mirror", "--topics", "("), "topics '('"),
        (("--from", "127.0.0.1:1", "--dir", "mirror", "--rate", "0"), "--rate 0"),
        (("--from", "127.0.0.1:1", "check", "mirror"), "behind its name"),
        (("--topics", "x", "check", "mirror"), "behind its name"),
        (("--rate", "1MB", "promote", "mirror"), "behind its name"),
        (("--from", "127.0.0.1:1", "--dir", "mirror", "--backup-keep", "1"), "is for --backup"),
        (("--dir", "mirror", "-X", "a=b", "--from", "127.0.0.1:1"), "a is no key"),
    ],
)
def test_slips(
    arguments: tuple[str, ...], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert text in logstore("mirror", *arguments, code=2).stderr
    assert not (tmp_path / "mirror").exists()


def test_http_for_others_takes_a_word(logstore_kafka: ServedCluster, tmp_path: Path) -> None:
    told = once(logstore_kafka, tmp_path / "mirror", "--http", "0.0.0.0:0", code=2)
    assert "not a loopback address" in told.stderr


# -- pure functions --------------------------------------------------------------------------------


def status(partitions: Mapping[TopicPartition, MirroredStatus] = {}, **fields: Any) -> MirrorView:
    return MirrorView(MirrorStatus("c", partitions, **{"answered_ms_ago": 10, **fields}))


def part(state: PartitionState = PartitionState.CAUGHT_UP, lag: int = 0) -> MirroredStatus:
    return MirroredStatus(state, 0, 10, 10 + lag, reason="why")


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (status({TP: part(PartitionState.BEHIND, 1000)}), ""),
        (status({TP: part(PartitionState.GONE)}), ""),
        (status(unreachable="refused"), ""),  # for a moment
        (status(answered_ms_ago=61_000, unreachable="refused"), "for 61 s: refused"),
        (status(answered_ms_ago=None), "not answered in this run"),
        (status(failure="disk full"), "disk full"),
        (status({TP: part(PartitionState.REFUSED)}), "orders-0 is refused: why"),
        (status({TP: part(PartitionState.FAILED)}), "orders-0 is failed: why"),
        (status()._replace(backup=BackupStatus("s3://b", failure="denied")), "s3://b: denied"),
    ],
)
def test_what_is_not_well(view: MirrorView, text: str) -> None:
    found = problems(view)
    assert [text in each for each in found] == ([True] if text else [])
    assert summary(view)["problems"] == found


@pytest.mark.parametrize(
    ("topics", "each", "has_topics", "has_partitions"),
    [
        (2, 3, True, True),
        (2, PARTITIONS_MAX // 2 + 1, True, False),
        (PARTITIONS_MAX + 1, 1, False, False),
    ],
)
def test_metrics_are_bounded(
    topics: int, each: int, has_topics: bool, has_partitions: bool
) -> None:
    tps = [TopicPartition(f"t{t}", p) for t in range(topics) for p in range(each)]
    found = [*samples(status(dict.fromkeys(tps, part(lag=2))))]
    names = {sample.name for sample in found}
    assert ("topic_lag_records" in names, "partition_lag_records" in names) == (
        has_topics,
        has_partitions,
    )
    assert next(s.value for s in found if s.name == "lag_records") == 2 * topics * each
    assert len(found) < 2 * PARTITIONS_MAX + 50


def test_a_lag_that_is_not_known_is_none() -> None:
    unknown = MirroredStatus(PartitionState.WAITING, 0, 10)
    named = {
        TP: unknown,
        TopicPartition("known", 0): part(lag=2),
        TopicPartition("known", 1): unknown,
    }
    found = [*samples(status(named))]
    lags = {s.labels[0][1]: s.value for s in found if s.name == "topic_lag_records"}
    assert lags == {"known": 2}


def test_a_store_that_is_down_stops_nobody() -> None:
    answers: list[Any] = [OSError("down"), ValueError("a bug"), ("hole",), ()]

    def run(pause: object) -> tuple[str, ...]:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return tuple(found)

    backup = ContinuousBackup("s3://b", run, 60)
    for failures, failure in ((1, "down"), (2, "ValueError: a bug")):
        assert not backup.run_now()
        assert (backup.status.failures, backup.status.failure) == (failures, failure)
    assert backup.run_now()
    found = backup.status
    assert (found.completed, found.failure, found.findings) == (1, "", ("hole",))
    assert found.completed_ms_ago is not None
    backup.run_now()
    assert (backup.status.completed, backup.status.findings) == (2, ())


def test_backups_go_on_after_a_failure() -> None:
    runs: list[int] = []

    def run(pause: object) -> tuple[str, ...]:
        runs.append(1)
        if len(runs) == 1:
            raise OSError("down")
        return ()

    backup = ContinuousBackup("s3://b", run, 0.01)
    backup.start()
    until(lambda: backup.status.completed >= 2)
    backup.close()
    made = len(runs)
    assert not backup.status.failure
    assert len(runs) == made


def test_an_idle_mirror_looks_at_all_partitions_only_to_show_them() -> None:
    """Four looks a second at thousands of partitions would be most of what it does."""
    looks: list[int] = []

    class Counted:
        report = SimpleNamespace(events=[], findings=0, counts={})
        unmatched: tuple[str, ...] = ()

        @property
        def status(self) -> MirrorStatus:
            looks.append(1)
            return MirrorStatus("cluster", {}, 0)

    wanted: Any = SimpleNamespace(as_json=False)
    counted: Any = Counted()
    screen = mirror_process.Screen()
    reporter = mirror_process.Reporter(counted, None, wanted, screen)
    seen = len(looks)
    reporter.report_if_due()
    assert len(looks) == seen
    screen.bar = SimpleNamespace(update=lambda *args, **more: None)
    reporter.report_if_due()
    assert len(looks) == seen + 1


def test_a_signal_waits_for_no_store_that_is_down() -> None:
    """Neither for the pauses of the backup that runs, nor with another one."""
    runs: list[int] = []

    def run(pause: Callable[[float], object]) -> tuple[str, ...]:
        runs.append(1)
        pause(3600)
        return ()

    backup = ContinuousBackup("s3://b", run, 0.001)
    backup.start()
    until(lambda: runs)
    assert not backup.finish(lambda: True)
    assert (len(runs), backup.status.completed) == (1, 0)
    assert "a signal came" in backup.status.failure


def test_a_signal_leaves_a_store_that_hangs() -> None:
    never = threading.Event()
    backup = ContinuousBackup("s3://b", lambda pause: (str(never.wait()),), 60)
    assert not backup.finish(lambda: True, patience_s=0.05)
    assert "not done" in backup.status.failure
    never.set()


def test_the_last_backup_comes_after_the_one_that_runs() -> None:
    runs: list[int] = []
    backup = ContinuousBackup("s3://b", lambda pause: tuple(map(str, runs[:0])), 60)
    backup.start()
    assert backup.finish(lambda: False)
    assert backup.status.completed == 1


@pytest.mark.parametrize("moves", [True, False])
def test_what_moves_without_bytes_is_waited_for(
    moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs are made, say; and nobody looks at thousands of partitions to see that."""
    looks, ended, time_ms = count(), threading.Event(), count(step=1000)

    class Moving:
        failure, unmatched = None, ()

        def catch_up(self, timeout_ms: int) -> bool:
            return ended.wait()

        @property
        def moved(self) -> int:
            number = next(looks)
            if number >= 100:
                ended.set()
            return number if moves else 0

        def close(self) -> None:
            ended.set()

    monkeypatch.setattr(mirror_process, "LOOK_S", 0.001)
    monkeypatch.setattr(mirror_process, "_now_ms", lambda: next(time_ms))
    view = status({TP: part(PartitionState.WAITING)})
    reporter: Any = SimpleNamespace(report_if_due=lambda: None, look=lambda: view)
    signals: Any = SimpleNamespace(stop=threading.Event())
    mirror: Any = Moving()
    ending = mirror_process._once(mirror, reporter, signals, 20_000)
    assert ending.code == (0 if moves else 2)
    assert moves or "nothing came from the source for 20 s: 1 partitions wait" in ending.reason


def test_logs_that_are_made_are_a_step_ahead(logstore_kafka: ServedCluster) -> None:
    with mirror_of(logstore_kafka) as mirror:
        assert mirror.moved == 0
        mirror.start()
        until(lambda: mirror.moved == 1)
        logstore_kafka.create_topic("orders")
        until(lambda: mirror.moved == 2)
        logstore_kafka.produce("orders", b"one")
        until(lambda: mirror.moved > 2)
