"""The commits of an exported table, in the transaction log of Delta Lake.

``_delta_log/00000000000000000007.json`` is commit 7: one action a line, as ``add`` and ``remove``
of a file of the table. A commit appears under its name whole and once, so whoever reads the log
sees the files of a commit all or not at all. The state of an export is in its ``commitInfo``, which
other readers pass over.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias
from urllib.parse import unquote

from checkpoints.checkpoint_file import load_file
from checkpoints.errors import CheckpointError
from logstore.common.errors import LogDirLockedError
from logstore.common.random_id import random_id
from logstore.directory.errors import ExportRefusedError
from logstore.storage.local import NamingStorage

Action: TypeAlias = Mapping[str, Any]

STATE = "logstore"
"""The field of ``commitInfo`` that an export writes."""

_LOG = "_delta_log"
_LOCK = ".lock"  # Delta's readers list names from "0" on
_COMMIT = re.compile(r"([0-9]{20})\.json")
_DATA = re.compile(r"([0-9]{20})-[0-9a-f]{32}")
_COMMIT_MAX = 256 << 20  # bytes: 10,000 partitions of 20 KB
_READER = 1
"""Version 2 of Delta's readers renames columns, 3 leaves out rows by deletion vectors."""


class DeltaLog:
    """The log of one table in a local or mounted file system."""

    def __init__(self, table: str) -> None:
        self.table = table
        self._log = os.path.join(table, _LOG)
        self._storage = NamingStorage()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other exports of this machine away; a process that was killed holds no lock.

        Raises:
            ExportRefusedError: another export holds it, or the directory has something else.
            OSError: the medium refused.
        """
        info = self._storage.info(self.table)
        if info is not None and not info.is_dir:
            raise self._refused("it is a file; a table is a directory")
        others = self._storage.scan_dir(self.table) if info is not None else []
        if others and self._storage.info(self._log) is None:
            raise self._refused(f"it holds {others[0].name!r}, and is no table of an export")
        self._storage.make_dir(self._log)
        try:
            lock = self._storage.lock(os.path.join(self._log, _LOCK))
        except LogDirLockedError as error:
            raise self._refused(f"another export is under way, in {error.holder}") from None
        try:
            yield
        finally:
            lock.release()

    # -- reading -------------------------------------------------------------------------------

    def latest(self) -> int:
        """The number of the newest commit, −1 if there is none.

        Raises:
            OSError: the medium refused.
        """
        if self._storage.info(self._log) is None:
            return -1
        names = (_COMMIT.fullmatch(entry.name) for entry in self._storage.scan_dir(self._log))
        return max((int(found[1]) for found in names if found), default=-1)

    def actions(self, version: int) -> list[Action]:
        """
        Raises:
            ExportRefusedError: the commit is missing or malformed.
        """
        path = self._path(version)
        try:
            data = load_file(self._storage, path, _COMMIT_MAX)
        except CheckpointError as error:
            raise self._refused(str(error)) from error
        if data is None:
            raise self._refused(
                f"commit {version} is not there any more: another program has cleaned the log"
            )
        try:
            found = [json.loads(line) for line in data.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise self._refused(f"commit {version} is malformed: {error}") from None
        if not all(isinstance(each, dict) for each in found):
            raise self._refused(f"commit {version} is malformed: an action is no object")
        return found

    def state(self, latest: int) -> tuple[int, Mapping[str, Any] | None]:
        """The newest commit of an export, and what it has written down.

        −1 and ``None`` if the table has no commit at all.

        Commits of others since are passed over if they leave the rows as they are, as those that
        pack small files do.

        Raises:
            ExportRefusedError: another program has changed the rows or made the table.
        """
        for version in range(latest, -1, -1):
            actions = self.actions(version)
            for action in actions:
                info = action.get("commitInfo")
                if isinstance(info, dict) and isinstance(found := info.get(STATE), dict):
                    return version, found
            if any(map(_changes, actions)):
                raise self._refused(f"commit {version} is of another program, and changed it")
        if latest >= 0:
            raise self._refused("no commit of it is of an export")
        return -1, None

    def files(self) -> list[str]:
        """The paths of the committed files.

        Raises:
            ExportRefusedError: the log cannot be read from its beginning, or asks for more than
                reading files.
        """
        found: dict[str, str] = {}
        for version in range(self.latest() + 1):
            for action in self.actions(version):
                try:
                    if "remove" in action:
                        found.pop(action["remove"]["path"], None)
                    elif "add" in action:
                        found[action["add"]["path"]] = self._file(action["add"]["path"])
                    elif "protocol" in action and action["protocol"]["minReaderVersion"] > _READER:
                        raise self._refused("another program has changed the protocol of the table")
                except (KeyError, TypeError, ValueError) as error:
                    raise self._refused(f"commit {version} is malformed: {error!r}") from None
        return list(found.values())

    def _file(self, relative: str) -> str:
        path = unquote(relative)
        if path.startswith("/") or "://" in path or ".." in path.split("/"):
            raise ValueError(f"{path!r} is not below the table")
        return os.path.join(self.table, path)

    def _path(self, version: int) -> str:
        return os.path.join(self._log, f"{version:020d}.json")

    def _refused(self, reason: str) -> ExportRefusedError:
        return ExportRefusedError(self.table, reason)

    # -- writing, with the lock ----------------------------------------------------------------

    def data_directory(self, version: int, exported: int) -> str:
        """The name of a new directory for the files of a commit, relative to the table.

        What runs since ``exported``, the newest commit of an export, have left is removed: those
        since are of others.

        Raises:
            OSError: the medium refused.
        """
        for entry in self._storage.scan_dir(self.table):
            found = _DATA.fullmatch(entry.name)
            if entry.is_dir and found is not None and int(found[1]) > exported:
                self.discard(entry.name)
        for entry in self._storage.scan_dir(self._log):
            if entry.name.startswith(".") and entry.name.endswith(".tmp"):
                self._storage.remove(os.path.join(self._log, entry.name))
        return f"{version:020d}-{random_id()}"

    def discard(self, directory: str) -> None:
        self._storage.remove_tree(os.path.join(self.table, directory))

    def sync(self, directory: str, names: Iterable[str]) -> None:
        """Make files of a new directory durable, and their names."""
        path = os.path.join(self.table, directory)
        for name in names:
            file = self._storage.open(os.path.join(path, name), writable=False)
            try:
                file.sync()
            finally:
                file.close()
        self._storage.sync_dir(path)
        self._storage.sync_dir(self.table)

    def commit(self, version: int, actions: Sequence[Action]) -> None:
        """Add a commit in one step, durably.

        Raises:
            ExportRefusedError: another program has made a commit of this number since.
            OSError: the medium refused. The commit may be there.
        """
        temporary = os.path.join(self._log, f".{version:020d}-{random_id()}.tmp")
        lines = (json.dumps(action, separators=(",", ":")) for action in actions)
        self._storage.write_file(temporary, "".join(f"{line}\n" for line in lines).encode())
        try:
            if not self._storage.link(temporary, self._path(version)):
                raise self._refused("its file system has no hard links, by which a commit is made")
        except FileExistsError:
            raise self._refused(f"another program has made commit {version} meanwhile") from None
        finally:
            with suppress(OSError):
                self._storage.remove(temporary)
            self._storage.sync_dir(self._log)
        self._storage.sync_dir(self.table)


def _changes(action: Action) -> bool:
    """Whether rows or columns are others with it."""
    if "protocol" in action or "metaData" in action:
        return True
    for kind in ("add", "remove", "cdc"):
        if kind in action:
            found = action[kind]
            return not isinstance(found, dict) or found.get("dataChange") is not False
    return False


__all__ = ["STATE", "Action", "DeltaLog"]
