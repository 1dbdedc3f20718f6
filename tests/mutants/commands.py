"""Broken commands: they lie, they write, they end otherwise than they should."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from logstore.cli import main
from logstore.log import PartitionLog
from logstore.recovery.set_aside import Remover
from tests.mutants import MonkeyPatch, mutant


def _during(patch: MonkeyPatch, command: str, act: Callable[[str], Any]) -> None:
    """Let a command do ``act`` with the directory first."""
    real = main.main

    def planted(args: list[str], **rest: Any) -> Any:
        if args[0] == command:
            act(args[-1])
        return real(args, **rest)

    patch.setattr(main, "main", planted)


@mutant(commands="batch lost by recover")
def cut_without_keeping(patch: MonkeyPatch) -> None:
    patch.setattr(Remover, "_keeps", lambda self, valid: False)


@mutant(commands="records not read")
def last_records_not_read(patch: MonkeyPatch) -> None:
    real = PartitionLog.records
    patch.setattr(PartitionLog, "records", lambda self: iter(list(real(self))[:-2]))


@mutant(commands="wrong record: manager")
def other_records_read(patch: MonkeyPatch) -> None:
    real = PartitionLog.records

    def other(self: PartitionLog) -> Any:
        return (record._replace(value=b"other") for record in real(self))

    patch.setattr(PartitionLog, "records", other)


@mutant(commands="not noticed by verify: batch.length")
def silent_verify(patch: MonkeyPatch) -> None:
    def silent(root: str) -> None:
        print('{"findings": [], "unusable": []}')
        sys.exit(0)

    _during(patch, "verify", silent)


def _write(root: str) -> None:
    with open(os.path.join(root, "meta.properties"), "a") as file:
        file.write("#")


@mutant(commands="changed by verify json")
def verify_writes(patch: MonkeyPatch) -> None:
    _during(patch, "verify", _write)


@mutant(commands="changed by recover --dry-run")
def dry_run_writes(patch: MonkeyPatch) -> None:
    _during(patch, "recover", _write)


@mutant(commands="traceback: verify json: ValueError")
def raw_error(patch: MonkeyPatch) -> None:
    def fail(root: str) -> None:
        raise ValueError(root)

    _during(patch, "verify", fail)


@mutant(commands="raw byte")
def raw_bytes(patch: MonkeyPatch) -> None:
    _during(patch, "recover", lambda root: print("\x1b[2J", file=sys.stderr))


@mutant(commands="exit code 3: recover")
def unknown_exit_code(patch: MonkeyPatch) -> None:
    _during(patch, "recover", lambda root: sys.exit(3))


@mutant(commands="traceback: verify json: Mem")
def too_much_memory(patch: MonkeyPatch) -> None:
    _during(patch, "verify", lambda root: bytearray(400 << 20))


@mutant(commands="hang: verify json")
def a_hang(patch: MonkeyPatch) -> None:
    _during(patch, "verify", lambda root: threading.Event().wait())
