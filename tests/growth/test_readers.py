"""What reads directories from outside: ``ls``, ``verify``, ``dump``, ``export``, ``read``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from logstore import LogManager
from logstore.cli import main
from logstore.verify import VerifyOptions, verify
from tests.growth.work import Act, Case, check, for_cases
from tests.support.builders import batch, log_config

Prepare = Callable[[int], Act]


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each size has a directory below it."""
    monkeypatch.chdir(tmp_path)


def written(partitions: int, segments: int = 1, batches: int = 1) -> str:
    directory = f"{partitions}-{segments}-{batches}"
    if Path(directory).exists():
        return directory
    with LogManager([directory], log_config(), background=False) as manager:
        for log in manager.create_topic("t", partitions):
            for number in range(segments):
                if number:
                    log.roll()
                for _ in range(batches):
                    log.append_as_leader(batch(key=b"k"), 0)
    return directory


def partitions(size: int) -> str:
    return written(size)


def segments(size: int) -> str:
    return written(1, size)


def batches(size: int) -> str:
    return written(1, 1, size)


Layout = Callable[[int], str]


def run(layout: Layout, *arguments: str, after: tuple[str, ...] = ()) -> Prepare:
    def prepare(size: int) -> Act:
        line = [*arguments, layout(size), *after]

        def act() -> None:
            result = CliRunner().invoke(main, line)
            assert result.exit_code == 0, result.output

        return act

    return prepare


def verified(layout: Layout, **options: Any) -> Prepare:
    def prepare(size: int) -> Act:
        directory = layout(size)
        return lambda: verify(directory, VerifyOptions(threads=1, **options))

    return prepare


def exported(layout: Layout) -> Prepare:
    def prepare(size: int) -> Act:
        target = Path(f"{layout(size)}.jsonl")
        target.unlink(missing_ok=True)
        return run(layout, "export", after=("t", "--to", str(target)))(size)

    return prepare


@pytest.mark.usefixtures("room")
@for_cases(
    Case("ls of partitions", run(partitions, "ls"), smallest=2),
    Case("ls of segments", run(segments, "ls")),
    Case("verify partitions", verified(partitions), smallest=2),
    Case("verify segments", verified(segments), smallest=2),
    Case("verify batches", verified(batches), smallest=64),  # an index entry each 4 KiB
    Case("verify batches deeply", verified(batches, deep=True), smallest=64),
    Case("read partitions", run(partitions, "read", after=("t",)), smallest=2),
    Case("read segments", run(segments, "read", after=("t",))),
    Case("export partitions", exported(partitions), smallest=2),
    Case("export segments", exported(segments), smallest=2),
)
def test_a_reader_costs_what_it_reads(case: Case) -> None:
    check(case)
