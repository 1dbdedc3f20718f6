"""``logstore dump``: print what the files of a log directory hold."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise

import click

from checkpoints.errors import MalformedCheckpointError
from checkpoints.files import UnusableFileError
from checkpoints.printable import printable
from checkpoints.types import TopicPartition
from logstore.cli.common import completion
from logstore.cli.common.exits import json_option
from logstore.cli.common.options import OFFSET
from logstore.cli.common.topics import partition_dir
from logstore.cli.dumping.log import dump_log
from logstore.cli.dumping.output import Output
from logstore.cli.dumping.small_files import (
    CHECKPOINTS,
    dump_checkpoint,
    dump_offset_index,
    dump_snapshot,
    dump_time_index,
    dump_txn_index,
)
from logstore.common.errors import CorruptDataError
from logstore.format import filenames
from logstore.format.reader import MAX_OFFSET
from logstore.storage import Storage
from logstore.storage.uri import log_directory, open_storage, shown


@click.command(short_help="Print segments, indexes, snapshots and checkpoint files.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH…", shell_complete=completion.files)
@click.option(
    "--from", "from_offset", type=OFFSET, default=0, metavar="OFFSET", help="First offset to print."
)
@click.option(
    "--to",
    "end_offset",
    type=OFFSET,
    default=MAX_OFFSET,
    metavar="OFFSET",
    help="Stop before this offset.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "hex"]),
    default="text",
    help="text: a line a batch; json: an object a record or entry; hex: headers, annotated.",
)
@json_option
@click.option("--deep", is_flag=True, help="Text: print the records of each batch too.")
@click.pass_context
def dump(
    ctx: click.Context,
    paths: tuple[str, ...],
    from_offset: int,
    end_offset: int,
    form: str,
    as_json: bool,
    deep: bool,
) -> None:
    """Print segments, indexes, snapshots and checkpoint files.

    A PATH is one such file, a partition directory or a whole log directory, written by logstore or
    by a Kafka broker, which need not be stopped. Of a directory, json and hex print the segments
    only, so that the output is one stream of records; text prints every file. Keys, values and
    headers are base64 in json, null when they are null.

    Corrupt data is reported on stderr and gives exit code 1; the rest is still printed. A torn or
    zero-filled tail, which a crash leaves, is mentioned and is no error.

    Nothing is printed raw: what is not printable in a name is escaped, as \\n, and a key, value or
    header that is not printable text is hex, as 0x0a.
    """
    out = Output("json" if as_json else form, deep, from_offset, end_offset)
    for path in paths:
        try:
            storage, local = open_storage(log_directory(path))
        except OSError as error:
            out.unusable(f"{printable(shown(path))}: {error.strerror or error}")
            continue
        _dump_path(storage, local, out)
    ctx.exit(out.exit_code)


def _dump_path(storage: Storage, path: str, out: Output) -> None:
    info = storage.info(path)
    if info is None:
        out.unusable(f"{printable(path)}: no such file or directory")
        return
    if not info.is_dir:
        if not _is_known(os.path.basename(path)):
            out.unusable(f"{printable(path)}: not a file of a log directory, going by its name")
            return
        _dump_file(storage, path, out)
        return
    for file_path in _files_below(storage, path, out):
        if out.form == "text":
            out.lines([f"# {printable(file_path)}"])
        _dump_file(storage, file_path, out)


def _files_below(storage: Storage, path: str, out: Output) -> Iterator[str]:
    """The files of a partition directory, or of a log directory and its partitions, by name.

    Files and directories on their way out (``.deleted``, ``-delete``, …) are left out; they can
    be named on the command line.
    """
    entries = storage.scan_dir(path)
    names = [entry.name for entry in entries if not entry.is_dir and _is_current(entry.name)]
    for name in _in_range(names, out):
        if out.form == "text" or name.endswith(filenames.LOG_SUFFIX):
            yield os.path.join(path, name)
    for entry in entries:
        parsed = partition_dir(entry.name) if entry.is_dir else None
        if parsed is not None and not parsed.suffix:
            yield from _files_below(storage, os.path.join(path, entry.name), out)


def _in_range(names: list[str], out: Output) -> list[str]:
    """Leave out segments that lie wholly below ``--from`` or from ``--to`` on."""
    parsed = {name: filenames.parse_segment_file(name) for name in names}
    bases = sorted(
        {file.offset for file in parsed.values() if file and file.suffix == filenames.LOG_SUFFIX}
    )
    following = dict(pairwise(bases))

    def wanted(name: str) -> bool:
        file = parsed[name]
        if file is None or file.suffix == filenames.SNAPSHOT_SUFFIX:
            return True
        end = following.get(file.offset, MAX_OFFSET)
        return file.offset < out.end_offset and end > out.from_offset

    return [name for name in names if wanted(name)]


def _is_known(name: str) -> bool:
    return name in CHECKPOINTS or filenames.parse_segment_file(name) is not None


def _is_current(name: str) -> bool:
    file = filenames.parse_segment_file(name)
    return name in CHECKPOINTS if file is None else not file.transition


def _dump_file(storage: Storage, path: str, out: Output) -> None:
    info = storage.info(path)
    if info is not None and not info.is_file:
        out.unusable(f"{path}: is no regular file, or a link to none")
        return
    try:
        parsed = filenames.parse_segment_file(os.path.basename(path))
        if parsed is None:
            dump_checkpoint(storage, path, out)
        else:
            _dump_segment_file(storage, path, parsed, out)
    except (CorruptDataError, MalformedCheckpointError) as error:
        out.corrupt(error)
    except UnusableFileError as error:
        out.unusable(f"{printable(path)}: {error.reason}")
    except FileNotFoundError:
        # A running broker rolls and deletes.
        out.note(f"{printable(path)}: vanished before it was read")


def _dump_segment_file(
    storage: Storage, path: str, parsed: filenames.SegmentFile, out: Output
) -> None:
    def log_size() -> int | None:
        return _log_size(storage, path, parsed)

    file = storage.open(path, writable=False)
    try:
        match parsed.suffix:
            case filenames.LOG_SUFFIX:
                dump_log(file, _partition_of(path), out)
            case filenames.INDEX_SUFFIX:
                dump_offset_index(file, parsed.offset, log_size, out)
            case filenames.TIME_INDEX_SUFFIX:
                dump_time_index(file, parsed.offset, log_size, out)
            case filenames.TXN_INDEX_SUFFIX:
                dump_txn_index(file, log_size, out)
            case _:
                dump_snapshot(file, out)
    finally:
        file.close()


def _log_size(storage: Storage, path: str, index: filenames.SegmentFile) -> int | None:
    """The size of the log of an index. A rolled log may still wait for its final name."""
    log = filenames.segment_file_name(index.offset, filenames.LOG_SUFFIX, index.transition)
    for name in (log, log + filenames.SWAP_SUFFIX):
        info = storage.info(os.path.join(os.path.dirname(path), name))
        if info is not None and info.is_file:
            return info.size
    return None


def _partition_of(path: str) -> TopicPartition | None:
    """Topic and partition by the name of the directory, since the file does not name them."""
    parsed = partition_dir(os.path.basename(os.path.dirname(os.path.abspath(path))))
    return None if parsed is None else parsed.topic_partition
