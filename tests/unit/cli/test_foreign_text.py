"""What strangers wrote into a log directory, as every command prints it: never raw, never a line.

The directory has hostile names of partitions, topics in checkpoints, properties, records and files;
the commands run for a pipe and on a pseudo-terminal, where there are colours and tables.
"""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import shutil
import sys
import threading
import tty
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TextIO

import pytest
from click.testing import CliRunner

from checkpoints.printable import printable
from logstore.cli import main
from logstore.common.errors import ConfigError, LogstoreError
from logstore.format.batch import encode_batch, end_transaction_marker
from logstore.format.control import ControlType
from logstore.log import PartitionLog
from logstore.manager import LogManager
from logstore.segments.producer_state import AppendOrigin
from logstore.verify import verify
from tests.support.cases import for_each

FORGED = "0 files: clean"
KINDS = {
    "escape": "\x1b[2J",
    "return": "\r" + FORGED,
    "newline": "\n" + FORGED + "\nx",
    "bell": "\x07",
    "tab": "\t",
    "delete": "\x7f",
    "next line": "\x85" + FORGED,
    "c1 escape": "\x9b2J",
    "override": "\u202e",
    "zero width": "\u200b",
    "line separator": "\u2028" + FORGED,
    "no text": "\udcff\udc9b2J",
    "markup": "[bold red]x[blink]",
    "escaped already": r"\x1b[2J",
}
# What rich makes: styles, and the moves of a progress bar. No kind has one of these.
OWN = re.compile(r"\x1b\[[0-9;]*m|\r?(?:\x1b\[1A)?\x1b\[2K|\x1b\[\?25[lh]")


class Ran(NamedTuple):
    exit_code: int
    out: bytes
    err: bytes


Run = Callable[..., Ran]


def in_a_pipe(*arguments: object) -> Ran:
    result = CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)
    return Ran(result.exit_code, result.stdout_bytes, result.stderr_bytes)


@contextmanager
def pseudo_terminal() -> Iterator[tuple[TextIO, list[bytes]]]:
    """A stream, and what was written to it once this is over."""
    master, slave = pty.openpty()
    tty.setraw(slave)  # a line break stays one
    read: list[bytes] = []

    def follow() -> None:
        with suppress(OSError):  # that the other end was closed
            while data := os.read(master, 1 << 16):
                read.append(data)

    reader = threading.Thread(target=follow)
    reader.start()
    with open(slave, "w", encoding="utf-8") as stream:
        yield stream, read
    reader.join()
    os.close(master)


def on_a_terminal(*arguments: object) -> Ran:
    """In this process, stdout and stderr pseudo-terminals of 200 columns."""
    code = 0
    with (
        pseudo_terminal() as (out, out_read),
        pseudo_terminal() as (err, err_read),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("COLUMNS", "200")
        patch.setenv("TERM", "xterm-256color")
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        try:
            main(list(map(str, arguments)), prog_name="logstore")
        except SystemExit as end:
            code = int(end.code or 0)
    return Ran(code, b"".join(out_read), b"".join(err_read))


RUNS = pytest.mark.parametrize("run", [in_a_pipe, on_a_terminal], ids=["pipe", "terminal"])
ALL_KINDS = [pytest.param(evil, id=kind) for kind, evil in KINDS.items()]
EVERY_KIND = for_each("evil", ALL_KINDS, at_once=4)


def checked(ran: Ran) -> Ran:
    """Only lines of printable text came out, and none that a stranger wrote."""
    assert ran.exit_code in (0, 1, 2)
    for data in (ran.out, ran.err):
        for line in OWN.sub("", data.decode()).split("\n"):
            assert line.isprintable(), ascii(line)
            assert not line.startswith(FORGED)
    return ran


# -- the directory ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("foreign") / "data"
    with LogManager([path]) as manager:
        manager.create_topic("orders", 1)[0].append([(b"key", b"value")] * 3)
    return path


def properties(text: str) -> bytes:
    """As Java writes it into a properties file."""
    plain = set(map(chr, range(0x20, 0x7F))) - {"\\"}
    return "".join(c if c in plain else f"\\u{ord(c):04x}" for c in text).encode()


@pytest.fixture
def hostile(template: Path, tmp_path: Path) -> Callable[[str], Path]:
    def make(evil: str) -> Path:
        """``orders-0`` holds the records; beside it are one whose name is hostile, and one with
        hostile files."""
        root = tmp_path / str(len(list(tmp_path.iterdir()))) / "data"
        shutil.copytree(template, root)
        raw = os.fsencode(evil)
        with LogManager([root]) as manager:
            fill(manager.get("orders", 0), raw)
        (root / ".kafka_cleanshutdown").unlink()
        shutil.copytree(root / "orders-0", root / f"a{evil}b-0")
        bad = Path(shutil.copytree(root / "orders-0", root / "bad-0"))
        (bad / f"{0:020d}.log").write_bytes(b"\0" * 11 + b"\1" * 90)  # no batch
        (bad / f"{evil}.log").write_bytes(b"x")
        (bad / f"{evil}x").mkdir()
        (bad / "leader-epoch-checkpoint").write_bytes(b"0\n1\n" + raw + b" 0\n")
        (bad / "partition.metadata").write_bytes(b"version: 0\ntopic_id: " + raw + b"\n")
        (bad / "topic.properties").write_bytes(b"x=" + raw + b"\n")
        (root / f"{evil}-delete").mkdir()
        (root / f"{evil}file").write_bytes(b"x")
        for name in (
            "recovery-point-offset-checkpoint",
            "log-start-offset-checkpoint",
            "replication-offset-checkpoint",
            "cleaner-offset-checkpoint",
        ):
            (root / name).write_bytes(b"0\n2\norders 0 0\na" + raw + b"b 0 77\n")
        (root / "meta.properties").write_bytes(
            b"version=1\nnode.id=1\nbroker.id=2\ncluster.id=a" + properties(evil) + b"b\n"
        )
        return root

    return make


def fill(log: PartitionLog, raw: bytes) -> None:
    """Records, and a transaction that was aborted."""
    name = raw.decode("utf-8", "replace")
    log.append([(b"k" + raw, raw), (raw, None)])
    log.append_columns([raw], [None], [1], [[(name, raw)]])
    batch = encode_batch(
        [(None, raw)], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    log.append_as_leader(batch, 0)
    marker = end_transaction_marker(
        ControlType.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=1
    )
    log.append_as_leader(marker, 0, origin=AppendOrigin.COORDINATOR)


# -- commands --------------------------------------------------------------------------------------


def files_below(root: Path) -> Iterable[Path]:
    return sorted((path for path in root.rglob("*") if path.is_file()), key=os.fsencode)


@RUNS
@EVERY_KIND
def test_verify(hostile: Callable[[str], Path], run: Run, evil: str) -> None:
    root = hostile(evil)
    ran = checked(run("verify", root))
    report = json.loads(checked(run("verify", root, "--json")).out)
    assert report["errors"] > 3
    lines = OWN.sub("", ran.out.decode()).split("\n")
    if run is in_a_pipe:  # a finding has one line, and nothing else looks like one
        found = [x for x in lines if re.match(r"(error|warning|info) [a-z]+(-[a-z]+)*", x)]
        assert len(found) == len(report["findings"])
    assert len([x for x in lines if re.match(r"\d+ files: ", x)]) == 1
    checked(run("verify", *files_below(root), "--no-compare"))
    checked(run("verify", root / f"a{evil}b-0", root / "bad-0", root / f"{evil}none"))


@RUNS
@EVERY_KIND
def test_recover(hostile: Callable[[str], Path], run: Run, evil: str) -> None:
    root = hostile(evil)
    bad = root / "bad-0"
    checked(run("recover", root, "--dry-run"))
    checked(run("recover", root / f"a{evil}b-0", "--dry-run"))
    checked(run("recover", bad, "--dry-run"))
    checked(run("recover", root / f"{evil}none"))
    checked(run("recover", root / f"{evil}-delete"))
    checked(run("recover", bad))
    checked(run("recover", root))


@RUNS
@EVERY_KIND
def test_dump(hostile: Callable[[str], Path], run: Run, evil: str) -> None:
    root = hostile(evil)
    for form in (["--deep"], ["--format", "json"], ["--format", "hex"]):
        checked(run("dump", root, root / f"{evil}none", *form))
        checked(run("dump", *files_below(root), *form))


@EVERY_KIND
def test_read_on_a_terminal(hostile: Callable[[str], Path], evil: str) -> None:
    root = hostile(evil)
    for more in ([], ["--key-separator", evil], ["--format", "json"], ["--format", "raw"]):
        ran = checked(on_a_terminal("read", root, "orders", *more))
        assert ran.exit_code == 0
        if not more:
            assert len(ran.out.split(b"\n")) == 3 + 4 + 1
    checked(on_a_terminal("read", root, f"a{evil}b"))


@RUNS
@EVERY_KIND
def test_what_a_user_pastes(hostile: Callable[[str], Path], run: Run, evil: str) -> None:
    root = hostile(evil)
    for arguments in (
        [f"x{evil}"],
        ["verify", f"--x{evil}"],
        ["verify", root, "--threads", evil],
        ["verify", root, "--html", f"{root}/{evil}/x.html"],
        ["verify", root, "--html", root / f"a{evil}b-0"],
        ["verify", root, "--conf", evil],
        ["read", root, f"no{evil}"],
        ["read", f"{root}{evil}", "orders"],
        ["read", root, "orders", "--from", evil],
        ["read", root, "orders", f"more{evil}"],
        ["append", root / f"{evil}file", "t"],
        ["append", root / evil, f"t{evil}"],
        ["recover", f"{root}{evil}"],
        ["dump", root / f"{evil}file"],
        ["simulate", "--truncation", evil, "--schedules", "1"],
        ["simulate", "--faults", evil],
        ["simulate", "--replay", f"{root}{evil}"],
    ):
        assert checked(run(*arguments)).exit_code in (1, 2), arguments


@EVERY_KIND
def test_log_lines_and_errors_of_the_library(template: Path, tmp_path: Path, evil: str) -> None:
    """A directory whose own name is hostile; every file in it gives rise to a warning or more."""
    root = Path(shutil.copytree(template, tmp_path / f"a{evil}b"))
    raw = os.fsencode(evil)
    (root / ".kafka_cleanshutdown").unlink()
    (root / "log-start-offset-checkpoint").write_bytes(b"0\n1\n" + raw + b"\n")
    with open(root / "orders-0" / f"{0:020d}.log", "ab") as log:
        log.write(b"\1" * 90)  # torn
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger("logstore").addHandler(handler)
    try:
        with LogManager([root]) as manager:
            manager.get("orders", 0).append([(b"k", raw)])
            with pytest.raises(LogstoreError) as refused:
                LogManager([root])
            assert str(refused.value).isprintable()
        (root / "meta.properties").write_bytes(b"version=" + properties(evil) + b"\n")
        with pytest.raises(LogstoreError) as refused:
            LogManager([root])
        assert str(refused.value).isprintable()
    finally:
        logging.getLogger("logstore").removeHandler(handler)
    lines = stream.getvalue().split("\n")
    assert len(lines) > 2
    assert printable(evil) in stream.getvalue()
    for line in lines:
        assert line.isprintable(), ascii(line)
        assert not line.startswith(FORGED)


def test_a_pipe_gets_records_as_they_are(template: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(template, tmp_path / "data"))
    values = [os.fsencode(evil) for evil in KINDS.values()]
    with LogManager([root]) as manager:
        manager.get("orders", 0).append([(b"k", value) for value in values])
    ran = in_a_pipe("read", root, "orders", "--from", "3")
    assert ran.out == b"".join(value + b"\n" for value in values)
    ran = in_a_pipe("read", root, "orders", "--from", "3", "--format", "raw")
    assert ran.out == b"".join(values)


def test_ordinary_text_is_left_alone_on_a_terminal(template: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(template, tmp_path / "data"))
    with LogManager([root]) as manager:
        manager.get("orders", 0).append([(b"k", "é 日本 🙂 [bold]".encode())])
    ran = on_a_terminal("read", root, "orders", "--from", "3")
    assert ran.out.decode() == "é 日本 🙂 [bold]\n"


def test_a_narrow_encoding_does_not_end_a_command(template: Path) -> None:
    result = CliRunner(charset="latin-1").invoke(main, ["dump", str(template / "日本é\x1b")])
    assert result.exit_code == 2
    assert rb"\u65e5\u672c" in result.stderr_bytes
    assert rb"\x1b" in result.stderr_bytes


LONG = "x" * 1_000_000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("recovery-point-offset-checkpoint", f"0\n1\n{LONG} 0 5\n"),
        ("meta.properties", f"version=1\nnode.id=1\ncluster.id={LONG}\n"[:1_000_000] + "\n"),
        (f"topic-creation-{'A' * 22}", f"0\n1\n{LONG} 0 0\n"),
    ],
)
def test_a_value_of_a_megabyte_is_cut_short(tmp_path: Path, name: str, text: str) -> None:
    LogManager([tmp_path / "a"]).close()
    LogManager([tmp_path / "b"]).close()
    (tmp_path / "a" / name).write_text(text)
    page = tmp_path / "page.html"
    in_a_pipe("verify", tmp_path / "b", "--html", page)
    usual = page.stat().st_size
    for arguments in (
        ("verify", tmp_path / "a", tmp_path / "b", "--html", page),
        ("dump", tmp_path / "a"),
        ("recover", tmp_path / "a"),
    ):
        ran = in_a_pipe(*arguments)
        assert max(map(len, (ran.out + ran.err).splitlines()), default=0) < 1000, arguments
    assert page.stat().st_size < usual + 5000
    with pytest.raises(ConfigError) as refused:  # two clusters
        LogManager([tmp_path / "a", tmp_path / "b"])
    assert len(str(refused.value)) < 1000


def test_a_checkpoint_of_strangers_gives_a_thousand_findings(tmp_path: Path) -> None:
    LogManager([tmp_path]).close()
    lines = "".join(f"gone {number} 5\n" for number in range(5000))
    (tmp_path / "recovery-point-offset-checkpoint").write_text(f"0\n5000\n{lines}")
    report = verify([tmp_path])
    assert not report.clean
    assert (len(report.findings), report.suppressed) == (1000, 4000)
