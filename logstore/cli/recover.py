"""``logstore recover``: open logs as a start after a crash does, for real or on an overlay."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from checkpoints.loggers import get_logger
from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common import completion
from logstore.cli.common.exits import EXIT_FINDINGS, fail, json_option
from logstore.cli.common.options import one_broker
from logstore.cli.common.topics import partition_dir

_MIB = 1 << 20


@click.command(short_help="Do what a start after a crash does, or show it.")
@click.argument(
    "path",
    metavar="PATH",
    callback=one_broker,
    shell_complete=completion.directories,
)
@click.option("--dry-run", is_flag=True, help="Report only: nothing on the disk is changed.")
@click.option(
    "--keep-cut",
    type=click.Choice(["never", "valid", "always"]),
    default="valid",
    show_default=True,
    help="Keep bytes that are cut as *.cut files; valid: when whole batches are among them.",
)
@click.option("--scan-all", is_flag=True, help="Scan every segment, though the stop was clean.")
@json_option
@click.pass_context
def recover(
    ctx: click.Context, path: str, dry_run: bool, keep_cut: str, scan_all: bool, as_json: bool
) -> None:
    """Do what a start after a crash does: scan, cut what is torn, rebuild indexes.

    PATH is a log directory or one partition directory in it; it must not be in use. Recovery goes
    by the recovery points and the clean-shutdown marker on file. Afterwards the directory counts
    as cleanly shut down, unless only a partition of it was recovered. With --scan-all every batch
    is checked, whatever the last stop was; a log is cut at the first that is bad, and what was
    behind it is kept. ``logstore rescue`` keeps that in the log.

    Exit code 0: nothing was cut, lost or in doubt. 1: something was, or with --dry-run would be.
    2: an error, a log is too damaged to be opened (the others are recovered), or the directory
    could not be closed in order.
    """
    from logstore.recovery import RecoveryOptions
    from logstore.storage.uri import log_directory

    if log_directory(path) != path:
        fail(f"{printable(path)}: a store of segments is never changed; see logstore restore")
    if not os.path.isdir(path):
        fail(f"{printable(path)}: not a directory")
    options = RecoveryOptions(keep_cut=keep_cut, scan_all=scan_all)
    unavailable: dict[str, str] = {}
    with warnings_in_reports():
        if is_partition(path):
            reports = [_recover_partition(path, options, dry_run)]
        else:
            reports = _recover_all(path, options, dry_run, unavailable)
    if as_json:
        result = {
            "dryRun": dry_run,
            "reports": [report.to_dict() for report in reports],
            "unavailable": unavailable,
        }
        terminal.print_json(result, indent=2)
    else:
        _print(reports, dry_run)
    if unavailable:
        names = (f"{name} cannot be opened: {why}" for name, why in unavailable.items())
        fail(printable("; ".join(names)))
    ctx.exit(EXIT_FINDINGS if any(report.has_findings for report in reports) else 0)


@contextmanager
def warnings_in_reports() -> Iterator[None]:
    """Mute the logger, because warnings are printed from the reports."""
    logger = get_logger("logstore.recovery.recovery")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def is_partition(path: str) -> bool:
    """Whether ``path`` is the directory of one partition, by its name and what is around it."""
    parsed = partition_dir(os.path.basename(os.path.abspath(path)))
    if parsed is None:
        return False
    if parsed.suffix:
        fail(f"{printable(path)}: a {parsed.suffix} directory is not recovered by itself")
    return not _is_log_dir(path)


def _is_log_dir(path: str) -> bool:
    from checkpoints import CLEAN_SHUTDOWN, META_PROPERTIES, RECOVERY_POINT
    from logstore.manager.log_dir import LOCK

    known = (LOCK, META_PROPERTIES, RECOVERY_POINT, CLEAN_SHUTDOWN)
    return any(os.path.exists(os.path.join(path, name)) for name in known)


def _check_partitions(path: str) -> None:
    """Refuse a directory that is no log directory, because it would become one."""
    from logstore.format import filenames
    from logstore.storage.local import LocalStorage

    if _is_log_dir(path):
        return
    skipped = (filenames.REMOTE_LOG_INDEX_CACHE, filenames.CLUSTER_METADATA_DIR)
    for name in (entry.name for entry in LocalStorage().scan_dir(path) if entry.is_dir):
        parsed = partition_dir(name)
        if name not in skipped and parsed is not None and not parsed.suffix:
            return
    fail(f"{printable(path)}: neither a log directory nor a partition")


def _recover_all(path: str, options: Any, dry_run: bool, unavailable: dict[str, str]) -> list[Any]:
    """Recover with the log manager, as a broker starts and stops. A dry run uses an overlay."""
    from checkpoints import CLEAN_SHUTDOWN, clean_shutdown
    from logstore.manager import LoadProgress, LogManager, ManagerOwner
    from logstore.storage.local import LocalStorage
    from logstore.storage.overlay import OverlayStorage

    _check_partitions(path)
    storage: Any = OverlayStorage(LocalStorage()) if dry_run else LocalStorage()

    def forget(loaded: LoadProgress) -> None:
        storage.forget(loaded.report.directory)

    with LogManager(
        [path],
        storage=storage,
        options=options,
        background=False,
        owner=ManagerOwner(keep_high_watermarks=True, progress=forget if dry_run else None),
    ) as manager:
        for tp, error in sorted(manager.unavailable_logs.items()):
            unavailable[str(tp)] = error.reason
        reports = manager.recovery_reports
    marker = os.path.join(path, CLEAN_SHUTDOWN)
    if not unavailable and not clean_shutdown.exists(marker, storage):
        fail(f"{printable(path)} was recovered, and could not be closed in order")
    return reports


def _recover_partition(path: str, options: Any, dry_run: bool) -> Any:
    parent = os.path.dirname(os.path.abspath(path))
    if not _is_log_dir(parent):
        return _open(path, None, options, dry_run)
    with _locked(parent, create=not dry_run):
        return _open(path, parent, options, dry_run)


@contextmanager
def _locked(log_dir: str, create: bool = False) -> Iterator[None]:
    """Hold the lock of a log directory; where no lock file exists a dry run makes none (F-9)."""
    from logstore.manager.log_dir import LOCK
    from logstore.storage.local import LocalStorage

    path = os.path.join(log_dir, LOCK)
    lock = LocalStorage().lock(path) if create or os.path.exists(path) else None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _open(path: str, log_dir: str | None, options: Any, dry_run: bool) -> Any:
    """Open one log with the checkpoints of its log directory, and close it. Returns the report."""
    from checkpoints import CLEAN_SHUTDOWN, LOG_START, RECOVERY_POINT, clean_shutdown
    from checkpoints.types import TopicPartition
    from logstore.format import filenames
    from logstore.log import LogOwner, PartitionLog
    from logstore.storage import Storage
    from logstore.storage.local import LocalStorage
    from logstore.storage.overlay import OverlayStorage

    storage: Storage = OverlayStorage(LocalStorage()) if dry_run else LocalStorage()
    name = os.path.basename(os.path.abspath(path))
    tp: TopicPartition = filenames.parse_partition_dir(name).topic_partition
    clean, point, start = False, None, None
    if log_dir is not None:
        clean = clean_shutdown.exists(os.path.join(log_dir, CLEAN_SHUTDOWN), storage)
        point = _offset(os.path.join(log_dir, RECOVERY_POINT), tp, storage)
        start = _offset(os.path.join(log_dir, LOG_START), tp, storage)
    owner = LogOwner(
        managed=True, clean_shutdown=clean, recovery_point=point, log_start_offset=start
    )
    log = PartitionLog.open(path, storage=storage, options=options, owner=owner)
    if dry_run:
        log.crash()
    else:
        log.close()
    return log.recovery_report


def _offset(path: str, tp: Any, storage: Any) -> int | None:
    """An offset on file; None if there is none or the file cannot be read (F-32, S-55)."""
    from checkpoints import MalformedCheckpointError, OffsetCheckpoint

    try:
        return OffsetCheckpoint(path, storage).read().get(tp)
    except MalformedCheckpointError as failure:
        terminal.line(f"warning: {failure}; taken as absent", err=True)
        return None


def _print(reports: list[Any], dry_run: bool) -> None:
    from logstore.terminal import tables

    listing = tables.Listing(
        ["partition"],
        [
            "segments",
            "scanned",
            "batches",
            "records",
            "MiB read",
            "log end",
            "bytes cut",
            "kept",
            "lost",
        ],
    )
    for report in reports:
        listing.add_row(
            _name(report),
            f"{report.segments:,}",
            f"{report.segments_scanned:,}",
            f"{report.batches_scanned:,}",
            f"{report.records_scanned:,}",
            f"{report.bytes_scanned / _MIB:,.1f}",
            f"{report.log_end_offset}",
            f"{report.bytes_cut:,}",
            f"{report.bytes_set_aside:,}",
            "[{}, {})".format(*report.offsets_lost) if report.offsets_lost else "-",
        )
    listing.print()
    for report in reports:
        for line in (*report.actions, *(f"warning: {warning}" for warning in report.warnings)):
            terminal.line(f"{_name(report)}: {line}")
    cut = sum(report.bytes_cut for report in reports)
    verb = "would be cut" if dry_run else "cut"
    terminal.line(f"{len(reports):,} logs, {cut:,} bytes {verb}")
    unread = sum(report.clean and not report.segments_scanned for report in reports)
    if unread:
        why = f"{unread:,} were closed cleanly, so their records were not read"
        terminal.line(f"note: {why}: --scan-all reads them, so does logstore verify", err=True)


def _name(report: Any) -> str:
    return printable(os.path.basename(os.path.abspath(report.directory)))
