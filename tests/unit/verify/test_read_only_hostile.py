"""``verify`` and ``dump`` of files that change while they are read, lie about their size or are
sparse: an exit code of 0, 1 or 2, in bounded time and memory."""

from __future__ import annotations

import os
import random
import socket
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from verify_files import every_file

from logstore.cli import main
from logstore.format.batch import encode_batch
from logstore.format.large_batch import worth_reading
from logstore.log.reading.directory_reader import DirectoryReader
from logstore.storage.local import LocalStorage
from logstore.storage.memory import MemoryStorage
from logstore.verify import Severity, verify
from tests.support.cases import for_each
from tests.support.until import until

MIB = 1 << 20
LIMIT = 700 * MIB
"""Of address space above what the interpreter takes with all modules loaded."""

CHILD = """
import resource, sys
from click.testing import CliRunner
from logstore.cli import main
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
main(sys.argv[2:])
"""


def run(*arguments: object, extra: int = LIMIT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(extra), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def partition(tmp_path: Path) -> Path:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    return directory


def sparse(path: Path, size: int, head: bytes = b"") -> Path:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
    return path


def claiming(size: int) -> bytes:
    """The first bytes of a batch of ``size`` bytes."""
    batch = bytearray(encode_batch([(b"key", b"value", 1)]))
    batch[8:12] = struct.pack(">i", size - 12)
    return bytes(batch)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["verify", "dump", "read"])
def test_a_batch_that_claims_a_gigabyte(tmp_path: Path, command: str) -> None:
    log = sparse(partition(tmp_path) / f"{0:020}.log", 1 << 30, claiming((1 << 30) - 100))
    arguments = (tmp_path, "orders") if command == "read" else (log,)
    found = run(command, *arguments)
    assert found.returncode == 1, found.stderr[-2000:]
    assert "Traceback" not in found.stderr
    # more than the file has: told from the header alone
    log.unlink()
    sparse(log, 1000, claiming(2**31 - 100))
    assert run(command, *arguments).returncode in (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("verify",), ("dump",), ("dump", "--deep")])
def test_files_that_others_cut(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Large windows and many segments, while they are cut, grow, vanish and come back."""
    directory = partition(tmp_path)
    large = encode_batch([(b"key", bytes(40 * MIB), 1)])
    small = encode_batch([(b"key", b"value" * 200, 1)])
    files = [directory / f"{base:020}.log" for base in (0, 5, 10, 15, 20)]
    content = [large, *(bytearray(small) for _ in files[1:])]
    for base, data in zip((5, 10, 15, 20), content[1:], strict=True):
        struct.pack_into(">q", data, 0, base)
    for path, data in zip(files, content, strict=True):
        path.write_bytes(data)
    rng = random.Random(3)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(2 * LIMIT), *arguments, str(directory)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )

    steps = iter(range(500))  # without an end, a command on a busy machine never comes to one

    def ends() -> bool:
        for path in rng.choices(files, k=10 if next(steps, None) is not None else 0):
            match rng.randrange(4):
                case 0 if path.exists():
                    os.truncate(path, rng.randrange(0, max(1, path.stat().st_size)))
                case 1 if path.exists():
                    os.truncate(path, path.stat().st_size + rng.randrange(MIB))
                case 2:
                    path.unlink(missing_ok=True)
                case _:
                    path.write_bytes(content[files.index(path)])
        return child.poll() is not None

    until(ends, "the end of the command")
    _, told = child.communicate()
    assert child.returncode in (0, 1, 2), told[-2000:]
    assert "Traceback" not in told


# --- special files, names, sizes ------------------------------------------------------------------

NAMES = (
    f"{0:020}.log",
    f"{0:020}.index",
    f"{0:020}.timeindex",
    f"{0:020}.txnindex",
    f"{1:020}.snapshot",
    "leader-epoch-checkpoint",
    "partition.metadata",
    "topic.properties",
    "clean-stop",
    "billing.cursor",
)
ROOT_NAMES = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "meta.properties",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
    ".kafka_cleanshutdown",
)


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        before = os.getcwd()
        os.chdir(path.parent)  # the address has room for 107 bytes
        server.bind(path.name)
        os.chdir(before)


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_dangling(path: Path) -> None:
    path.symlink_to("nowhere")


KINDS: dict[str, Callable[[Path], None]] = {
    "fifo": make_fifo,
    "socket": make_socket,
    "device": make_device,
    "directory": Path.mkdir,
    "dangling": make_dangling,
}


def log_directory(tmp_path: Path) -> Path:
    """A log directory on this disk with every kind of file."""
    copy_to_disk(every_file(), "/data", tmp_path / "d")
    assert verify([tmp_path / "d"]).clean
    return tmp_path / "d"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return log_directory(tmp_path)


def copy_to_disk(storage: MemoryStorage, path: str, target: Path) -> None:
    target.mkdir()
    for entry in storage.scan_dir(path):
        if entry.is_dir:
            copy_to_disk(storage, f"{path}/{entry.name}", target / entry.name)
        else:
            (target / entry.name).write_bytes(storage.read_file(f"{path}/{entry.name}"))


@pytest.mark.parametrize("kind", KINDS)
@for_each("name", [*NAMES, *ROOT_NAMES])
def test_a_special_file_is_a_finding_and_the_rest_is_checked(
    tmp_path: Path, name: str, kind: str
) -> None:
    root = log_directory(tmp_path)
    other = root / "orders-1" / f"{0:020}.log"
    other.write_bytes(b"x" * 100)
    path = root / name if name in ROOT_NAMES else root / "orders-0" / name
    if path.parent.name == "orders-0" and name[:1] in "01":
        path = min(path.parent.glob("*" + path.suffix))
    path.unlink(missing_ok=True)
    KINDS[kind](path)
    report = verify([root])
    assert report.unusable == []
    found = {finding.file for finding in report.findings if finding.severity is Severity.ERROR}
    assert {str(path), str(other)} <= found
    dumped = CliRunner().invoke(main, ["dump", str(path)])
    if kind != "directory" and name not in ("topic.properties", "clean-stop", "billing.cursor"):
        assert dumped.exit_code == 2
        assert dumped.stdout == ""
        assert dumped.stderr.count("\n") == 1


@for_each(
    "name, rule",
    [
        ("a b-0", "directory-name"),
        ("orders-+1", "directory-name"),
        ("orders-01", "directory-name"),
        ("orders-99999999999", "directory-name"),
        (b"\xff-0", "directory-name"),
        ("orders-0/99999999999999999999.log", "file-name"),
        ("orders-0/-0000000000000000001.log", "file-name"),
        ("orders-0/5.log", "file-name"),
        (b"orders-0/\xff.log", "file-name"),
    ],
)
def test_a_bad_name_is_a_finding_and_the_rest_is_checked(
    tmp_path: Path, name: str | bytes, rule: str
) -> None:
    root = log_directory(tmp_path)
    path = os.path.join(os.fsencode(root), os.fsencode(name))
    if name in (b"orders-0/\xff.log",) or "/" in os.fsdecode(name):
        with open(path, "wb") as file:
            file.write(b"x")
    else:
        os.mkdir(path)
    report = verify([root])
    told = [finding for finding in report.findings if finding.severity is not Severity.INFO]
    assert [(finding.rule, os.fsencode(finding.file)) for finding in told] == [(rule, path)]
    assert len(report.partitions) == 2


@for_each(
    "name, size, rule",
    [
        ("00000000000000000000.log", 2**31, "too-large"),
        ("00000000000000000000.index", 10 << 30, "too-large"),
        ("00000000000000000000.timeindex", 10 << 30, "too-large"),
        ("00000000000000000000.txnindex", 10 << 30, "too-large"),
        ("00000000000000000013.snapshot", 10 << 30, "too-large"),
        ("leader-epoch-checkpoint", 10 << 30, "epochs-form"),
        ("partition.metadata", 10 << 30, "partition-metadata"),
        ("topic.properties", 10 << 30, "topic-properties"),
        ("clean-stop", 10 << 30, "clean-stop"),
        ("../recovery-point-offset-checkpoint", 10 << 30, "checkpoint-form"),
        ("../meta.properties", 10 << 30, "meta-form"),
    ],
)
def test_a_sparse_file_is_refused_by_its_size(
    tmp_path: Path, name: str, size: int, rule: str
) -> None:
    root = log_directory(tmp_path)
    path = (root / "orders-1" / name).resolve()
    path.touch()
    os.truncate(path, size)
    report = verify([root])
    assert report.unusable == []
    assert (rule, str(path)) in {(finding.rule, finding.file) for finding in report.findings}
    assert any(partition.partition == 0 for partition in report.partitions)


def test_a_reader_takes_no_memory_for_what_a_batch_claims(tmp_path: Path) -> None:
    log = sparse(partition(tmp_path) / f"{0:020}.log", 300 * MIB, claiming(200 * MIB))
    storage = LocalStorage()
    file = storage.open(str(log), writable=False)
    tracemalloc.start()
    assert not worth_reading(file, 0, 200 * MIB)
    assert DirectoryReader(log.parent, storage=storage).end_on_file() == 0
    assert tracemalloc.get_traced_memory()[1] < 30 * MIB
    tracemalloc.stop()
    file.close()


def test_entries_that_no_log_can_need_are_not_looked_at(root: Path) -> None:
    """Each would be a finding, and 2 GiB of them more than there is memory."""
    path = root / "orders-1" / f"{0:020}.index"
    path.write_bytes(b"\xff" * (8 << 20))
    report = verify([root])
    own = [finding for finding in report.findings if finding.file == str(path)]
    assert "too-large" in {finding.rule for finding in own}
    assert len(own) < 100
