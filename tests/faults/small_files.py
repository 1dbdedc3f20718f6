"""Small text files in forms that no writer gives them, and those that belong to another topic."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from functools import partial

from checkpoints.clean_shutdown import CLEAN_SHUTDOWN
from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH
from checkpoints.meta_properties import META_PROPERTIES
from checkpoints.offset_checkpoint import HIGH_WATERMARK, RECOVERY_POINT
from checkpoints.partition_metadata import PARTITION_METADATA
from tests.faults.planter import Fault, choose, fault, kind, register
from tests.faults.site import Site, replace

_RULES = "checkpoint-form text-form"

OF_DIRECTORIES: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "checkpoint_entry_twice": (
        RECOVERY_POINT,
        lambda data: (
            _counted(data.splitlines(keepends=True), 1) + data.splitlines(keepends=True)[2]
        ),
        _RULES,
    ),
    "checkpoint_counts_one_more": (
        HIGH_WATERMARK,
        lambda data: _counted(data.splitlines(keepends=True), 1),
        _RULES,
    ),
    "checkpoint_negative": (HIGH_WATERMARK, lambda data: _last(data, b"-5"), _RULES),
    "checkpoint_with_a_plus": (HIGH_WATERMARK, lambda data: _last(data, b"+5"), _RULES),
    "checkpoint_too_large": (RECOVERY_POINT, lambda data: _last(data, b"9" * 20), _RULES),
    "meta_of_another_version": (
        META_PROPERTIES,
        lambda data: data.replace(b"version=1", b"version=7"),
        "meta-form",
    ),
    "meta_with_another_key": (META_PROPERTIES, lambda data: data + b"rack.id=7\n", "meta-form"),
    "meta_cut": (META_PROPERTIES, lambda data: data[:-1], "meta-form"),
    "meta_without_a_node": (
        META_PROPERTIES,
        lambda data: data.replace(b"node.id", b"mode.id"),
        "meta-form",
    ),
    "marker_garbled": (CLEAN_SHUTDOWN, lambda _: b'{"version":', "clean-marker"),
    "marker_of_another_version": (
        CLEAN_SHUTDOWN,
        lambda _: b'{"version":3,"brokerEpoch":-1}',
        "clean-marker",
    ),
}
OF_PARTITIONS: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "epoch_entry_twice": (
        LEADER_EPOCH,
        lambda data: (
            _counted(data.splitlines(keepends=True), 1) + data.splitlines(keepends=True)[-1]
        ),
        "log-epoch epochs-form text-form",
    ),
    "epoch_negative": (
        LEADER_EPOCH,
        lambda data: _counted([*data.splitlines(keepends=True)[:2], b"-2 0\n"], 0, 1),
        "epochs-form log-epoch log-negative-epoch",
    ),
    "epoch_of_three_numbers": (
        LEADER_EPOCH,
        lambda data: data[:-1] + b" 7\n",
        "epochs-form text-form",
    ),
    "topic_id_zero": (
        PARTITION_METADATA,
        lambda _: b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        "partition-metadata",
    ),
    "topic_id_of_another_version": (
        PARTITION_METADATA,
        lambda data: data.replace(b"version: 0", b"version: 1"),
        "partition-metadata",
    ),
    "topic_id_under_another_key": (
        PARTITION_METADATA,
        lambda data: data.replace(b"topic_id", b"topic_ib"),
        "text-form partition-metadata",
    ),
}
"""Name → file, what is in it instead, and what a verification must name."""


def _counted(lines: list[bytes], more: int, count: int = 0) -> bytes:
    """The lines of a checkpoint, with another number of entries."""
    lines[1] = b"%d\n" % ((count or int(lines[1])) + more)
    return b"".join(lines)


def _last(data: bytes, number: bytes) -> bytes:
    """Another number at the end of the last line."""
    return data[: data.rindex(b" ") + 1] + number + b"\n"


def _of_directory(
    row: tuple[str, Callable[[bytes], bytes], str], site: Site, rng: random.Random
) -> Fault:
    name, change, rules = row
    log_dir = choose(rng, [one for one in site.log_dirs if one.exists(name)])
    path = log_dir.file(name)
    wrong = change(log_dir.storage.read_file(path))
    replace(log_dir.storage, path, wrong)
    along = "recovery-point high-watermark checkpoint-stray log-offset-order log-unclean-end"
    rule = frozenset(rules.split())
    return Fault(f"{path} is {wrong!r}", path, frozenset((path,)), rule, frozenset(along.split()))


def _of_partition(
    row: tuple[str, Callable[[bytes], bytes], str], site: Site, rng: random.Random
) -> Fault:
    name, change, rules = row
    settled = [one for one in site.filled() if one.log_dir.clean]
    found = [one for one in settled if one.storage.info(one.file(name))]
    if name == LEADER_EPOCH:
        found = [one for one in found if len(one.epochs) > 1]
    replica = choose(rng, found)
    path = replica.file(name)
    wrong = change(replica.storage.read_file(path))
    replace(replica.storage, path, wrong)
    files = [path, *(segment.file(".log") for segment in replica.segments)]
    along = "epochs-range epochs-start"
    return fault(replica, f"{path} is {wrong!r}", files, rules, along, differs=False)


for _name, _row in OF_DIRECTORIES.items():
    register(_name, partial(_of_directory, _row))
for _name, _row in OF_PARTITIONS.items():
    register(_name, partial(_of_partition, _row))


@kind()
def topic_id_of_another_topic(site: Site, rng: random.Random) -> Fault:
    """In all partitions of a topic on all brokers: nothing else tells that one of them is wrong."""
    with_id = [one for one in site.replicas if one.storage.info(one.file(PARTITION_METADATA))]
    topics = sorted({one.tp.topic for one in with_id})
    topic, other = rng.sample(topics, 2)
    data = next(one for one in with_id if one.tp.topic == other)
    wrong = data.storage.read_file(data.file(PARTITION_METADATA))
    log_dir = choose(rng, site.log_dirs)
    mine = [one for one in with_id if one.log_dir is log_dir and one.tp.topic == topic]
    for one in mine:
        replace(one.storage, one.file(PARTITION_METADATA), wrong)
    files = [one.file(PARTITION_METADATA) for one in with_id]
    told = f"{topic} on {log_dir.path} has the id of {other}"
    return Fault(told, log_dir.path, frozenset(files), frozenset(("topic-id",)))


@kind()
def partition_copied(site: Site, rng: random.Random) -> Fault:
    """A directory under the name of another topic, on the broker that crashed."""
    found = [one for one in site.filled() if not one.log_dir.clean]
    replica = choose(rng, found)
    name = "c" + base64.b32encode(rng.randbytes(5)).decode().lower()
    target = replica.log_dir.file(f"{name}-{replica.tp.partition}")
    replica.storage.make_dir(target)
    for entry in replica.storage.scan_dir(replica.path):
        data = replica.storage.read_file(replica.file(entry.name))
        replica.storage.write_file(f"{target}/{entry.name}", data)
    files = [one.file(PARTITION_METADATA) for one in site.replicas]
    files.append(f"{target}/{PARTITION_METADATA}")
    return Fault(f"{target} of {replica.path}", target, frozenset(files), frozenset(("topic-id",)))
