"""What people read fits a terminal of 80 columns, and no name or number of it is cut off."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console

from logstore import LogConfig, LogManager
from logstore.terminal import tables

ROOT = Path(__file__).resolve().parents[3]
COLUMNS = 80
LONG = "customer-order-events-v2.production.europe"
BIG = [f"{10**9:,}", "1,048,576.0", "9223372036854775807"]


@pytest.fixture(scope="module")
def log_dirs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of two brokers of one cluster."""
    directories = [tmp_path_factory.mktemp("logs") / f"broker-{i}" for i in range(2)]
    with LogManager([directories[0]], LogConfig(segment_bytes=20_000)) as manager:
        for topic in (LONG, "short"):
            log = manager.get_or_create(topic, 0)
            for _ in range(20):
                log.append([(b"k", b"x" * 100)] * 100)
    subprocess.run(["cp", "-r", *map(str, directories)], check=True)
    properties = directories[1] / "meta.properties"
    properties.write_text(properties.read_text().replace("node.id=0", "node.id=1"))
    return directories


def on_a_terminal(*arguments: object) -> str:
    """What a command shows on a terminal of 80 columns, without colours."""
    control, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen(
        [sys.executable, "-m", "logstore", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**environment, "TERM": "dumb"},
    ) as process:
        os.close(terminal)
        shown = b""
        try:
            while part := os.read(control, 1 << 16):
                shown += part
        except OSError:  # how Linux tells that nobody has the other end any more
            pass
        finally:
            os.close(control)
        assert process.stderr is not None
        told = process.stderr.read()
    assert process.returncode in (0, 1), told
    return shown.decode().replace("\r\n", "\n")


def fits(shown: str) -> list[str]:
    lines = shown.splitlines()
    assert [line for line in lines if len(line) > COLUMNS] == []
    assert [line for line in lines if "…" in line.replace("0…2000", "")] == []
    return lines


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["ls"],
        ["verify"],
        ["verify", "--fingerprint"],
        ["recover", "--dry-run"],
        ["rescue", "--dry-run", "--to", "/nowhere"],
    ],
    ids=" ".join,
)
def test_tables_fit(command: list[str], log_dirs: list[Path]) -> None:
    several = command[0] in ("ls", "verify")
    shown = on_a_terminal(command[0], *log_dirs[: 2 if several else 1], *command[1:])
    lines = fits(shown)
    names = [line.split()[0] for line in lines if line.startswith((LONG, "short"))]
    assert sorted(names) == sorted([f"{LONG}-0", "short-0"] * (2 if several else 1))
    if several:
        assert "broker" in shown


@pytest.mark.slow
def test_help_has_a_line_for_each_command() -> None:
    lines = fits(on_a_terminal("--help"))
    commands = lines[lines.index("Commands:") + 1 :]
    assert len(commands) >= 15
    assert all(re.fullmatch(r"  [a-z]+ +[A-Z].*\.", line) for line in commands)
    assert not [line for line in commands if line.endswith("...")]


@pytest.mark.slow
def test_findings_fit(log_dirs: list[Path], tmp_path: Path) -> None:
    bad = tmp_path / "d"
    subprocess.run(["cp", "-r", str(log_dirs[0]), str(bad)], check=True)
    log = bad / f"{LONG}-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    shown = on_a_terminal("verify", bad)
    # A path is never broken, so that it can be copied: its line may be longer.
    lines = [line for line in shown.splitlines() if str(bad) not in line]
    fits("\n".join(lines).replace("0…99", "the range that is lost"))
    assert f"error log-checksum {log}" in " ".join(shown.split())


def listing(*rows: tuple[str, ...], numbers: int) -> tables.Listing:
    made = tables.Listing(["partition"], [f"n{i}" for i in range(numbers)])
    for row in rows:
        made.add_row(*row)
    return made


def shown(made: tables.Listing, width: int, is_terminal: bool) -> list[str]:
    console = Console(width=width, force_terminal=is_terminal)
    return [line for row in made._rendered(console) for line in row]


def test_names_go_above_numbers_that_they_leave_no_room() -> None:
    made = listing(("t-0", *BIG), ("x" * 40, "1", "2", "3"), numbers=3)
    above = shown(made, COLUMNS, True)
    assert above == [
        "partition",
        "             n0           n1                   n2",
        "t-0",
        "  1,000,000,000  1,048,576.0  9223372036854775807",
        "x" * 40,
        "              1            2                    3",
    ]
    beside = shown(made, 89, True)
    assert beside[1] == "t-0" + " " * 39 + "  ".join(BIG)
    assert {len(line) for line in beside} == {89}
    assert len(shown(made, 88, True)) == 6


def test_elsewhere_each_thing_has_one_line() -> None:
    made = listing(("x" * 300, *BIG), numbers=3)
    assert shown(made, COLUMNS, False)[1] == "  ".join(["x" * 300, *BIG])


def test_elsewhere_a_long_name_moves_its_own_row_alone() -> None:
    heading, short, long = shown(listing(("t-0", "1"), ("x" * 200, "2"), numbers=1), COLUMNS, False)
    assert long == "x" * 200 + "   2"
    assert {len(heading), len(short)} == {52}


def test_characters_of_two_columns_count_twice() -> None:
    first, *rest = shown(listing(("日本", "1"), ("abcd", "2"), numbers=1), COLUMNS, True)
    assert first == "partition  n0"
    assert rest == ["日本        1", "abcd        2"]


def test_a_row_has_a_cell_for_each_column() -> None:
    with pytest.raises(ValueError, match="1 cells in a row of 2"):
        listing(("t-0",), numbers=1)


def test_nothing_to_list(capsys: pytest.CaptureFixture[str]) -> None:
    listing(numbers=3).print()
    assert capsys.readouterr().out == ""


def test_a_row_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    listing(("a\nb\x1b[2J", "1"), numbers=1).print()
    out = capsys.readouterr().out
    assert out.count("\n") == 2
    assert "\x1b" not in out
