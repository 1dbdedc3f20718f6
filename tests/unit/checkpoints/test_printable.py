"""What came from a disk or a network, in errors and log lines."""

from __future__ import annotations

import io
import logging
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import checkpoints.errors
import logstore.common.errors
import replication.common.errors
import replication.coordination.errors
from checkpoints import MalformedCheckpointError, OffsetCheckpoint, OsFiles
from checkpoints.loggers import get_logger, traceback_text
from checkpoints.printable import PrintableError, one_line, printable
from checkpoints.types import TopicPartition
from logstore.common.errors import CorruptDataError, StorageFailedError
from tests.support.cases import for_each

EVIL = "\x1b[2J\r\nerror \x85\u202e\udcff"
SHOWN = r"\x1b[2J\r\nerror \u0085\u202e\xff"


@for_each(
    "value, shown",
    [
        ("", ""),
        ("orders-0", "orders-0"),
        ("é 日本 🙂 ['\"]", "é 日本 🙂 ['\"]"),
        ("\n\r\t\0\x07\x1b\x7f", r"\n\r\t\x00\x07\x1b\x7f"),
        ("\x80\x85\x9b\xa0", r"\u0080\u0085\u009b\u00a0"),
        ("\u200b\u202e\u2028\ufeff\U000e0001", r"\u200b\u202e\u2028\ufeff\U000e0001"),
        ("\udc80\udcff\ud800\udfff", r"\x80\xff\ud800\udfff"),
        (b"\xc3\xa9\xff\x9b\x1b", r"é\xff\x9b\x1b"),
        (r"C:\x1b", r"C:\\x1b"),
        (Path("/a\nb"), r"/a\nb"),
    ],
)
def test_values(value: Any, shown: str) -> None:
    assert printable(value) == shown
    assert one_line(shown) == shown


def test_no_two_values_look_the_same() -> None:
    parts = ("\n", "n", "\\", "\x85", "\udc85", "x", "85", "u0085")
    texts = {a + b + c for a in parts for b in parts for c in parts}
    assert len({printable(text) for text in texts}) == len(texts)


def test_a_limit_counts_what_is_there() -> None:
    assert printable("abcdef", 6) == "abcdef"
    assert printable("abcdefg", 6) == "abc..."
    assert printable("\n" * 7, 6) == r"\n\n\n..."


# -- errors ----------------------------------------------------------------------------------------


def classes(base: type[Exception]) -> Iterator[type[Exception]]:
    for kind in base.__subclasses__():
        yield kind
        yield from classes(kind)


OURS = [
    kind
    for kind in classes(PrintableError)
    if kind.__module__
    in {m.__name__ for m in (checkpoints.errors, logstore.common.errors, replication.common.errors)}
    | {replication.coordination.errors.__name__}
]


@for_each("kind", sorted(set(OURS), key=str), name=lambda kind: kind.__name__)
def test_every_error_is_one_printable_line(kind: type[Exception]) -> None:
    """Whatever the class does with its arguments: raw in the fields, escaped in the text."""
    error = made(kind)
    assert str(error).isprintable()
    assert r"\x1b[2J\r\nerror" in str(error)
    assert any(EVIL in str(value) for value in (*error.args, *vars(error).values()))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.args, str(copy)) == (kind, error.args, str(error))


def made(kind: type[Exception]) -> Exception:
    if kind is replication.common.errors.ResponseError:
        return replication.common.errors.ResponseError(
            replication.common.errors.ErrorCode.NONE, EVIL
        )
    for arguments in (
        (EVIL,),
        (EVIL, 1, 2, 3),
        (EVIL, 1, EVIL),
        (EVIL, 1, EVIL, EVIL),
        (EVIL, 1, 2, EVIL),
        (EVIL, EVIL),
    ):
        try:
            error = kind(*arguments)
            str(error)
        except (TypeError, AttributeError):
            continue
        return error
    raise AssertionError(kind)


def test_a_path_in_an_error_is_unambiguous() -> None:
    error = StorageFailedError("/a\\n\n", "fsync", "the disk says \x07")
    assert str(error) == r"/a\\n\n: fsync failed: the disk says \x07"
    assert error.path == "/a\\n\n"
    again = CorruptDataError("/b", 1, str(error))
    assert str(again) == r"/b at byte 1: /a\\n\n: fsync failed: the disk says \x07"


def test_a_line_of_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_bytes(b"0\n1\n\x1b[2J\xff\rerror \\ 0 x\n")
    with pytest.raises(MalformedCheckpointError) as caught:
        OffsetCheckpoint(str(path), OsFiles()).read()
    assert caught.value.line == "\x1b[2J\udcff\rerror \\ 0 x"
    assert str(caught.value).endswith(r"'\x1b[2J\xff\rerror \\ 0 x'")


# -- log lines -------------------------------------------------------------------------------------


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    parent = logging.getLogger("logstore")
    parent.addHandler(handler)
    yield stream
    parent.removeHandler(handler)


def test_arguments_of_every_kind(logged: io.StringIO) -> None:
    logger = get_logger("logstore.test_printable")
    assert get_logger("logstore.test_printable") is logger
    logger.warning("%s %s %s", EVIL, EVIL.encode("utf-8", "surrogateescape"), Path(EVIL))
    logger.warning("%s: %s", TopicPartition(EVIL, 1), [EVIL])
    logger.warning("%s", ValueError(EVIL))
    logger.warning("%(a)s", {"a": EVIL})
    logger.warning(EVIL)
    logger.warning("%d %.1f %s %x", 7, 1.25, None, 255)
    assert logged.getvalue().splitlines() == [
        f"WARNING {SHOWN} {SHOWN} {SHOWN}",
        rf"WARNING {SHOWN}-1: ['\x1b[2J\r\nerror \x85\u202e\udcff']",
        f"WARNING {SHOWN}",
        f"WARNING {SHOWN}",
        f"WARNING {SHOWN}",
        "WARNING 7 1.2 None ff",
    ]


def test_a_traceback_has_no_lines_of_its_error(logged: io.StringIO) -> None:
    try:
        try:
            raise KeyError(EVIL)
        except KeyError as error:
            raise ValueError(EVIL) from error
    except ValueError:
        get_logger("logstore.test_printable").exception("it failed")
    lines = logged.getvalue().splitlines()
    assert lines[0] == "ERROR it failed"
    assert lines.count("Traceback (most recent call last):") == 2
    assert lines[-1] == f"ValueError: {SHOWN}"
    assert all(line.isprintable() for line in lines)
    assert not [line for line in lines if line.startswith("error")]


def test_a_traceback_reads_as_that_of_python() -> None:
    def fail() -> None:
        try:
            raise KeyError("one")
        except KeyError:
            raise ValueError("two")  # noqa: B904 - the context is wanted

    with pytest.raises(ValueError) as caught:
        fail()
    error = caught.value
    assert traceback_text(error) + "\n" == "".join(traceback.format_exception(error))
