"""Everything that is done with a mutated directory: each command, and the library."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from checkpoints.errors import CheckpointError
from logstore.common.errors import InvalidTopicError, InvariantError, LogstoreError
from logstore.format import filenames
from tests.fuzz.children import Outcome, run_child
from tests.fuzz.mutations import Mutation
from tests.fuzz.originals import row_of
from tests.fuzz.tree import Kind, Tree, differences, read_tree, write_tree

APPENDED = b"appended after the damage"
TYPED = (LogstoreError, CheckpointError)


HANGS_MAX = 3  # of one directory: the others would hang as well


class _GaveUp(Exception):
    pass


@dataclass(slots=True)
class Run:
    """One command or one use of the library, and what came of it."""

    name: str
    arguments: list[str]
    outcome: Outcome
    changed: list[str] = field(default_factory=list)
    """What a run that only reads changed all the same."""
    prints_values: bool = False
    """Its stdout has record values as they are, on purpose."""

    def json(self) -> Any:
        """What it printed as JSON; None if it is none, such as an error."""
        try:
            return json.loads(self.outcome.stdout)
        except ValueError:
            return None


@dataclass(slots=True)
class Results:
    """All runs over one directory, and the directory after those that write."""

    runs: list[Run]
    recovered: Tree = field(default_factory=dict)
    recovered_again: Tree = field(default_factory=dict)
    opened: Tree = field(default_factory=dict)
    complete: bool = False

    def run(self, name: str) -> Run | None:
        return next((run for run in self.runs if run.name == name), None)


class Runner:
    """Runs what belongs to one tree, in directories below ``scratch``."""

    def __init__(
        self, tree: Tree, mutations: list[Mutation], scratch: str, seed: str, *, quick: bool = False
    ) -> None:
        """``quick``: one run of each kind, for a search that has seconds."""
        self._tree, self._mutations = tree, mutations
        self._scratch, self._root = scratch, os.path.join(scratch, "d")
        self._rng = random.Random(f"runs {seed}")
        self._quick = quick
        self._racing = [m for m in mutations if m.is_racing]
        self.runs: list[Run] = []

    def all(self) -> Results:
        """All runs, unless too many hang: then the results say so and have no trees."""
        results = Results(self.runs)
        with contextlib.suppress(_GaveUp):
            self._run_all(results)
            results.complete = True
        return results

    def _run_all(self, results: Results) -> None:
        write_tree(self._tree, self._root)
        self._read_only()
        self._command("recover", "recover", "--json", self._root)
        results.recovered = read_tree(self._root)
        self._command("recover again", "recover", "--json", self._root)
        results.recovered_again = read_tree(self._root)
        self._command("verify after", "verify", "--json", self._root)
        write_tree(self._tree, self._root)
        self._library("manager", lambda: use_manager(self._root))
        results.opened = read_tree(self._root)
        if not self._quick and self._rng.random() < 0.4:
            write_tree(self._tree, self._root)
            self._library("standalone", lambda: use_partitions(self._root))

    def _read_only(self) -> None:
        rng, root = self._rng, self._root
        before = read_tree(root)
        self._looking(before, "verify json", "verify", "--json", root)
        self._looking(before, "recover --dry-run", "recover", "--dry-run", "--json", root)
        if self._quick:
            return
        level = rng.choice(([], ["--shallow"], ["--no-fingerprint"], ["--threads", "1"]))
        self._looking(before, "verify", "verify", *level, root, terminal=rng.random() < 0.4)
        form = rng.choice((["--deep"], ["--format", "json"], ["--format", "hex"], []))
        self._looking(before, "dump", "dump", *form, root, terminal=rng.random() < 0.3)
        named = self._named_files()
        if named:
            self._looking(before, "dump files", "dump", *form, *named)
        for directory in self._partitions()[:2]:
            topic = filenames.parse_partition_dir(directory).topic_partition.topic
            form = rng.choice(
                (["--format", "json"], ["--committed"], ["--from", "@1"], ["--from", "5"])
            )
            self._looking(
                before, "read", "read", *form, root, "--", topic, values="json" not in form
            )
        if rng.random() < 0.2:
            self._looking(before, "recover table", "recover", "--dry-run", root, terminal=True)
        self._library("reader", lambda: use_readers(root), before)

    def _named_files(self) -> list[str]:
        paths = [m.to if m.op == "rename" else m.path for m in self._mutations]
        return [os.path.join(self._root, path) for path in paths if path in self._tree]

    def _partitions(self) -> list[str]:
        return [name for name, entry in self._tree.items() if is_partition(name, entry.kind)]

    def _looking(
        self, before: Tree, name: str, *arguments: str, terminal: bool = False, values: bool = False
    ) -> None:
        run = self._command(name, *arguments, terminal=terminal)
        run.prints_values = values
        self._compare(run, before)

    def _command(self, name: str, *arguments: str, terminal: bool = False) -> Run:
        from logstore.cli import main

        def body() -> int:
            main.main(list(arguments), prog_name="logstore")
            return 0

        return self._child(name, list(arguments), body, terminal)

    def _library(
        self, name: str, use: Callable[[], dict[str, Any]], before: Tree | None = None
    ) -> None:
        def body() -> int:
            print(json.dumps(use()))
            return 0

        run = self._child(name, [], body, terminal=False)
        if before is not None:
            self._compare(run, before)

    def _child(
        self, name: str, arguments: list[str], body: Callable[[], int], terminal: bool
    ) -> Run:
        with self._meanwhile():
            outcome = run_child(body, self._scratch, terminal=terminal)
        run = Run(name, arguments, outcome)
        self.runs.append(run)
        if sum(run.outcome.code is None for run in self.runs) == HANGS_MAX:
            raise _GaveUp
        return run

    def _compare(self, run: Run, before: Tree) -> None:
        if not self._racing:
            run.changed = differences(before, read_tree(self._root))

    @contextlib.contextmanager
    def _meanwhile(self) -> Iterator[None]:
        """Another process cuts a file and lets it grow again, for as long as the child runs."""
        if not self._racing:
            yield
            return
        pid = os.fork()
        if pid == 0:
            try:
                _cut_and_grow(self._root, self._racing, self._tree)
            finally:
                os._exit(0)
        try:
            yield
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def _cut_and_grow(root: str, racing: list[Mutation], tree: Tree) -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        for m in racing:
            with contextlib.suppress(OSError), open(os.path.join(root, m.path), "r+b") as file:
                file.truncate(m.at)
                time.sleep(0.001)
                file.write(tree[m.path].data)
        time.sleep(0.001)


def is_partition(name: str, kind: Kind) -> bool:
    if kind is not Kind.DIRECTORY or "/" in name:
        return False
    try:
        return not filenames.parse_partition_dir(name).suffix
    except InvalidTopicError:
        return False


# -- the library, in a child -----------------------------------------------------------------------


def digest(row: Any) -> str:
    return hashlib.blake2b(repr(tuple(row)).encode(), digest_size=8).hexdigest()


def use_manager(root: str) -> dict[str, Any]:
    """Open all logs, read, append, close; twice."""
    from logstore.manager import LogManager

    told: dict[str, Any] = {"errors": [], "logs": {}, "again": {}}
    for life in ("logs", "again"):
        with _typed(told, f"open {life}"), LogManager([root], background=False) as manager:
            told["offline"] = {path: str(e) for path, e in manager.offline_directories.items()}
            for log in manager.logs.values():
                told[life][log.name] = _use_log(log, told, append=life == "logs")
            told[f"{life} warned"] = [w for r in manager.recovery_reports for w in r.warnings]
    return told


def use_partitions(root: str) -> dict[str, Any]:
    """Each log opened alone, twice."""
    from logstore.log import PartitionLog

    told: dict[str, Any] = {"errors": [], "logs": {}, "again": {}}
    for item in sorted(os.scandir(root), key=lambda item: item.name):
        if not is_partition(
            item.name, Kind.DIRECTORY if item.is_dir(follow_symlinks=False) else Kind.FILE
        ):
            continue
        for life in ("logs", "again"):
            with _typed(told, f"open {life}"), PartitionLog.open(item.path) as log:
                told[life][item.name] = _use_log(log, told, append=life == "logs")
    return told


def use_readers(root: str) -> dict[str, Any]:
    from logstore.log.reading.directory_reader import DirectoryReader

    told: dict[str, Any] = {"errors": [], "logs": {}}
    for item in sorted(os.scandir(root), key=lambda item: item.name):
        if item.is_dir(follow_symlinks=False):
            with _typed(told, "reader"):
                reader = DirectoryReader(item.path)
                rows: list[Any] = []
                told["logs"][item.name] = {"rows": rows}
                for record in reader.follow(timeout=0):
                    rows.append((record.offset, digest(row_of(record))))
    return told


def _use_log(log: Any, told: dict[str, Any], *, append: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"start": log.log_start_offset, "end": log.log_end_offset, "rows": []}
    with _typed(told, "records"):
        for record in log.records():
            found["rows"].append((record.offset, digest(row_of(record))))
        found["read"] = True
    with _typed(told, "to_arrow"):
        found["arrow"] = sum(batch.num_rows for batch in log.to_arrow())
    for timestamp in (0, 1_700_000_000_000, -3):
        with _typed(told, "offset_for_timestamp"):
            log.offset_for_timestamp(timestamp)
    with _typed(told, "aborted_transactions"):
        log.reader.aborted_transactions(log.log_start_offset, log.log_end_offset)
    if append:
        with _typed(told, "append"):
            found["appended"] = log.append([(None, APPENDED)]).first_offset
    return found


@contextlib.contextmanager
def _typed(told: dict[str, Any], doing: str) -> Iterator[None]:
    """Errors with a type of the library are noted, as is where any other one came from."""
    try:
        yield
    except InvariantError:
        raise
    except TYPED as error:
        told["errors"].append([doing, type(error).__name__, str(error)])
