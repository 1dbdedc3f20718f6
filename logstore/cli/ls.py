"""``logstore ls``: what log directories hold."""

from __future__ import annotations

import os
from typing import Any

import click

from checkpoints.printable import printable
from logstore import terminal
from logstore.cli.common.exits import fail, json_option, notes
from logstore.cli.common.listing import ListedReplica, Lister, LogDirectory, compare
from logstore.cli.common.options import directories_argument
from logstore.common.json_fields import json_fields
from logstore.storage import Storage
from logstore.storage.uri import log_directory, open_storage

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


@click.command(short_help="List topics and partitions with offsets, sizes, leaders, lag.")
@directories_argument("paths", "DIR…")
@click.option("--topic", metavar="T", help="Only the partitions of this topic.")
@json_option
def ls(paths: tuple[str, ...], topic: str | None, as_json: bool) -> None:
    """List the topics and partitions of log directories, with their offsets and sizes.

    A directory may be in use, by logstore or by a Kafka broker: it is only read and its lock is
    left alone. The end offset is that of the files; the high watermark is the one on file, which a
    broker writes every few seconds.

    With the directories of several brokers the lag of each replica is shown: how many offsets it is
    behind the longest. A leader is marked with * where its epoch or its length gives it away; no
    file names it, and equal replicas do not show it.

    \b
    Example:
      logstore ls /var/lib/kafka-logs
    """
    note, found = notes(), []
    given: dict[str, tuple[Storage, str]] = {}  # by real path: the same directory twice is one
    for path in paths:
        storage, local = open_storage(log_directory(path))
        given.setdefault(storage.real_path(local), (storage, local))
    for storage, path in given.values():
        info = storage.info(path)
        if info is None or not info.is_dir:
            fail(f"{printable(path)}: no such directory")
        found.append(Lister(storage, note).log_directory(path))
    replicas = [each for directory in found for each in directory.replicas]
    compare(replicas)
    if topic is not None:
        replicas = [each for each in replicas if each.topic_partition.topic == topic]
    replicas.sort(key=lambda each: (each.topic_partition, each.broker, each.directory))
    if as_json:
        terminal.print_json(_json(found, replicas), indent=2)
    else:
        _print(found, replicas)


def _json(directories: list[LogDirectory], replicas: list[ListedReplica]) -> dict[str, Any]:
    partitions = []
    for each in replicas:
        fields = json_fields(each)
        directory = fields.pop("directory")
        fields = {**fields.pop("topicPartition"), **fields, "logDir": os.path.dirname(directory)}
        partitions.append(fields)
    return {
        "directories": [
            {"logDir": each.path, "broker": each.broker, "clusterId": each.cluster_id}
            for each in directories
        ],
        "partitions": partitions,
    }


def _print(directories: list[LogDirectory], replicas: list[ListedReplica]) -> None:
    from logstore.terminal import tables

    several = len(directories) > 1
    apart = len({each.broker for each in directories}) == len(directories)
    listing = tables.Listing(
        ["partition", *(["broker"] if several else [])],
        ["start", "end", "hw", *(["lag"] if several else []), "epoch", "segments", "size"],
    )
    for each in replicas:
        lag = [_number(each.offset_lag)] if several else []
        home = each.broker if apart else os.path.dirname(each.directory)
        broker = [printable(home) + ("*" if each.is_leader else "")] if several else []
        listing.add_row(
            printable(str(each.topic_partition)),
            *broker,
            str(each.log_start_offset),
            str(each.log_end_offset),
            _number(each.high_watermark),
            *lag,
            _number(each.leader_epoch),
            str(each.segments),
            _size(each.size),
        )
    listing.print()
    topics = len({each.topic_partition.topic for each in replicas})
    total = _size(sum(each.size for each in replicas))
    logs = _counted(len(replicas), "replica" if several else "partition")
    terminal.line(f"{_counted(topics, 'topic')}, {logs}, {total}")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _size(count: int) -> str:
    """Bytes to three digits, in powers of 1,024."""
    value, unit = float(count), 0
    while value >= 999.5 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    digits = 0 if unit == 0 or value >= 99.95 else 1
    return f"{value:.{digits}f} {_UNITS[unit]}"
