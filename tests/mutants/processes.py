"""Broken ownership: a child that takes its parent's log for its own, and paths that move along."""

from __future__ import annotations

import os

from logstore.log import partition_log
from logstore.log.core import LogCore
from logstore.storage.base import Storage
from tests.mutants import MonkeyPatch, mutant


@mutant()
def a_fork_is_not_noticed(patch: MonkeyPatch) -> None:
    """A child appends to the log of its parent, over what that has synced."""
    patch.setattr(LogCore, "disown", lambda self, pid: None)


@mutant()
def relative_paths_follow_the_process(patch: MonkeyPatch) -> None:
    """A log that was opened by a relative path goes along with ``chdir``."""

    def as_given(storage: Storage, path: str | os.PathLike[str]) -> str:
        return os.fspath(path)

    patch.setattr(partition_log, "absolute_path", as_given)
