"""A room grows only for a reason that is written down, and nothing in it becomes a giant."""

from __future__ import annotations

import subprocess
import tomllib

import pytest

from tests.architecture import measure

CLASS_LINES, CLASS_METHODS = 500, 40  # with all that is inherited
FUNCTION_LINES, ARGUMENTS = 70, 10
# What users and scripts call on one object: a cluster in this process, a disk that fails.
FACADES = {"Cluster", "FaultyStorage", "ServedCluster", "SimDisk", "Stage"}
# Assemblies, which name each part once; the pure decision of an election; a read with its options.
LONG = {
    "replication/broker/broker.py:__init__",
    "replication/decisions/election.py:change",
    "replication/partition/leader.py:fetch",
    "replication/replica_manager/replica_manager.py:__init__",
    "replication/server/serving.py:serve",
}
MANY_ARGUMENTS = {
    "logstore/format/arrow.py:read_columns",
    "logstore/format/batch.py:_sealed",
    "replication/decisions/election.py:change",
    "replication/embedded/local_brokers.py:__init__",
}
FOR_TYPES_ONLY = [["logstore.segments.segment", "logstore.segments.segment_view"]]
COMMITS = 30  # the newest that changed the record
_RECORD = measure.RATCHET.relative_to(measure.ROOT).as_posix()


def test_no_room_has_more_lines_than_its_record() -> None:
    lines, recorded = measure.room_lines(), measure.recorded()
    assert sum(lines.values()) > 50_000  # else they were not found
    grown = {room: n - recorded.get(room, 0) for room, n in lines.items()}
    assert {room: more for room, more in grown.items() if more > 0} == {}, measure.__doc__


def raised(before: str, after: str) -> set[str]:
    """The rooms that may have more lines after a change of the record."""
    old, new = tomllib.loads(before), tomllib.loads(after)
    return {room for room, count in new.items() if count > old.get(room, 0)}


def git(*arguments: str) -> str | None:
    done = subprocess.run(
        ["git", *arguments], cwd=measure.ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else None


@pytest.mark.slow
def test_a_record_is_raised_with_a_reason() -> None:
    # What a merge brings together was raised, with a reason, by one of the two.
    log = ("log", f"-{COMMITS}", "--no-merges", "--format=%H", "--", _RECORD)
    for commit in (git(*log) or "").split():
        after, before = (git("show", f"{c}:{_RECORD}") for c in (commit, f"{commit}^"))
        if before is not None and after is not None and raised(before, after):
            reason = git("log", "-1", "--format=%b", commit) or ""
            assert reason.strip(), (
                f"{commit} raises {raised(before, after)} and gives no reason in its body"
            )


def test_a_raised_record_is_seen() -> None:
    assert raised('"a" = 3\n"b" = 4', '"a" = 2\n"b" = 5\n"c" = 1') == {"b", "c"}


@pytest.mark.slow
def test_no_class_is_a_giant_in_several_files() -> None:
    known = measure.classes()
    assert len(known) > 600
    heavy = {c.name for c in known if c.total_lines > CLASS_LINES or c.methods > CLASS_METHODS}
    assert heavy == FACADES


@pytest.mark.slow
def test_functions_are_short_and_take_few_arguments() -> None:
    known = list(measure.functions())
    assert len(known) > 3000
    assert {f.place for f in known if f.lines > FUNCTION_LINES} == LONG
    assert {f.place for f in known if f.arguments > ARGUMENTS} == MANY_ARGUMENTS


@pytest.mark.slow
def test_no_files_import_each_other_in_a_circle() -> None:
    assert measure.circles() == FOR_TYPES_ONLY
