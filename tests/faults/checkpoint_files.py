"""Faults of the small text files: of a partition, and of the log directory around it."""

from __future__ import annotations

import base64
import random
from collections.abc import Sequence

from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH
from checkpoints.meta_properties import META_PROPERTIES
from checkpoints.offset_checkpoint import HIGH_WATERMARK, LOG_START, RECOVERY_POINT
from checkpoints.partition_metadata import PARTITION_METADATA
from logstore.format import filenames
from tests.faults.planter import Fault, choose, fault, kind
from tests.faults.site import LogDir, Replica, Site, replace

LOG = filenames.LOG_SUFFIX
_MALFORMED = (b"", b"0\n", b"7\n0\n", b"0\n3\n1 2\n", b"0\n1\nx y z\n", b"0\n1\n", b"\xff\xfe\0")


def _logs(replica: Replica) -> list[str]:
    return [segment.file(LOG) for segment in replica.segments]


# -- leader-epoch-checkpoint -------------------------------------------------------------------


def write_epochs(replica: Replica, entries: Sequence[tuple[int, int]]) -> str:
    path = replica.file(LEADER_EPOCH)
    lines = "".join(f"{epoch} {start}\n" for epoch, start in entries)
    replace(replica.storage, path, f"0\n{len(entries)}\n{lines}".encode())
    return path


def _starts(site: Site) -> list[tuple[Replica, int]]:
    """Replicas with the number of an entry, not the first, whose epoch has batches."""
    return [
        (replica, number)
        for replica in site.filled()
        for number, (epoch, _) in enumerate(replica.epochs)
        if number
        and any(s.batch.leader_epoch == epoch and s.segment.settled for s in replica.batches)
    ]


@kind()
def epoch_dropped(site: Site, rng: random.Random) -> Fault:
    replica, number = choose(rng, _starts(site))
    entries = replica.epochs
    path = write_epochs(replica, entries[:number] + entries[number + 1 :])
    told = f"{path} without entry {entries[number]}"
    return fault(replica, told, [path, *_logs(replica)], "log-epoch")


@kind()
def epoch_moved(site: Site, rng: random.Random) -> Fault:
    """An epoch begins one batch earlier, or later, than its batches."""
    replica, number = choose(rng, _starts(site))
    epoch, start = replica.epochs[number]
    around = [spot.batch for spot in replica.batches if spot.batch.next_offset == start] + [
        spot.batch for spot in replica.batches if spot.batch.leader_epoch == epoch
    ][:1]
    batch = choose(rng, around)
    wrong = batch.base_offset if batch.base_offset < start else batch.next_offset
    entries = [*replica.epochs]
    entries[number] = (epoch, wrong)
    path = write_epochs(replica, entries)
    told = f"epoch {epoch} starts at {wrong} for {start} in {path}"
    return fault(replica, told, [path, *_logs(replica)], "log-epoch", "epochs-range")


@kind()
def epochs_malformed(site: Site, rng: random.Random) -> Fault:
    replica = choose(rng, [replica for replica in site.filled() if replica.epochs])
    path = replica.file(LEADER_EPOCH)
    data = replica.storage.read_file(path)
    wrong = rng.choice((*_MALFORMED, data[:-2] + b"?\n", data + b"1\n"))
    replace(replica.storage, path, wrong)
    return fault(replica, f"{path} is {wrong!r}", [path], "epochs-form epochs-start")


@kind()
def epoch_above_the_end(site: Site, rng: random.Random) -> Fault:
    """Of a log that was closed cleanly: else a cut may have left it."""
    closed = [replica for replica in site.filled() if replica.log_dir.clean]
    replica = choose(rng, [replica for replica in closed if replica.epochs])
    entry = replica.epochs[-1][0] + 1, replica.end_offset + rng.randrange(1, 1000)
    path = write_epochs(replica, [*replica.epochs, entry])
    return fault(replica, f"{path} with {entry}", [path], "epochs-range")


# -- offsets of all partitions -----------------------------------------------------------------


def _above_the_end(site: Site, rng: random.Random, name: str, rules: str, along: str) -> Fault:
    replica = choose(rng, [replica for replica in site.filled() if replica.checkpointed(name) >= 0])
    offset = replica.end_offset + rng.randrange(1, 1000)
    log_dir = replica.log_dir
    log_dir.write_offsets(name, log_dir.offsets(name) | {replica.tp: offset})
    told = f"{name} of {log_dir.path} has {offset} for {replica.tp}"
    files = [replica.segments[-1].file(LOG), log_dir.file(name)]
    return fault(replica, told, files, rules, along)


@kind()
def recovery_point_above_the_end(site: Site, rng: random.Random) -> Fault:
    return _above_the_end(site, rng, RECOVERY_POINT, "recovery-point", "")


@kind()
def high_watermark_above_the_end(site: Site, rng: random.Random) -> Fault:
    return _above_the_end(site, rng, HIGH_WATERMARK, "high-watermark", "")


@kind()
def log_start_above_the_end(site: Site, rng: random.Random) -> Fault:
    replica = choose(rng, site.filled())
    offset = replica.end_offset + rng.randrange(1, 1000)
    log_dir = replica.log_dir
    known = log_dir.offsets(LOG_START) if log_dir.exists(LOG_START) else {}
    log_dir.write_offsets(LOG_START, known | {replica.tp: offset})
    told = f"{LOG_START} of {log_dir.path} has {offset} for {replica.tp}"
    files = [replica.segments[-1].file(LOG), log_dir.file(LOG_START)]
    return fault(replica, told, files, "log-start-offset", "recovery-point high-watermark")


@kind()
def offsets_malformed(site: Site, rng: random.Random) -> Fault:
    log_dir = choose(rng, site.log_dirs)
    names = [name for name in (RECOVERY_POINT, HIGH_WATERMARK, LOG_START) if log_dir.exists(name)]
    name = choose(rng, names)
    data = log_dir.storage.read_file(log_dir.file(name))
    wrong = rng.choice((*_MALFORMED[1:], data[:-2] + b"?\n", data + b"a 1\n", data[:-3]))
    replace(log_dir.storage, log_dir.file(name), wrong)
    return _of_directory(log_dir, name, f"{wrong!r}", "checkpoint-form")


@kind()
def offset_of_nobody(site: Site, rng: random.Random) -> Fault:
    log_dir = choose(rng, site.log_dirs)
    name = rng.choice((RECOVERY_POINT, HIGH_WATERMARK))
    replica = choose(rng, [replica for replica in site.replicas if replica.log_dir is log_dir])
    entry = replica.tp._replace(partition=replica.tp.partition + 70)
    log_dir.write_offsets(name, log_dir.offsets(name) | {entry: 5})
    return _of_directory(log_dir, name, f"with an entry for {entry}", "checkpoint-stray")


# -- ids ---------------------------------------------------------------------------------------


@kind()
def topic_id_malformed(site: Site, rng: random.Random) -> Fault:
    replica = choose(rng, _with_id(site))
    path = replica.file(PARTITION_METADATA)
    wrong = rng.choice((b"version: 0\ntopic_id: x", b"version: 3\n", b"topic_id: \n", b"\0" * 43))
    replace(replica.storage, path, wrong)
    return fault(replica, f"{path} is {wrong!r}", [path], "partition-metadata", differs=False)


@kind()
def topic_id_changed(site: Site, rng: random.Random) -> Fault:
    """Of one partition; another one of the topic, or another replica, still has the right one."""
    found = _with_id(site)
    candidates = [
        (one, [other for other in found if other.tp.topic == one.tp.topic and other is not one])
        for one in found
    ]
    replica, others = choose(rng, [pair for pair in candidates if pair[1]])
    path = replica.file(PARTITION_METADATA)
    topic_id = base64.urlsafe_b64encode(rng.randbytes(16)).decode().rstrip("=")
    replace(replica.storage, path, f"version: 0\ntopic_id: {topic_id}".encode())
    files = [path, *(other.file(PARTITION_METADATA) for other in others)]
    return fault(replica, f"{path} has topic id {topic_id}", files, "topic-id", differs=False)


def _with_id(site: Site) -> list[Replica]:
    return [one for one in site.replicas if one.storage.info(one.file(PARTITION_METADATA))]


@kind()
def meta_malformed(site: Site, rng: random.Random) -> Fault:
    log_dir = choose(rng, site.log_dirs)
    wrong = rng.choice((b"", b"version=1\nnode.id=many\n", b"version=x\n", b"version=9\n"))
    replace(log_dir.storage, log_dir.file(META_PROPERTIES), wrong)
    return _of_directory(log_dir, META_PROPERTIES, f"{wrong!r}", "meta-form")


@kind()
def meta_missing(site: Site, rng: random.Random) -> Fault:
    log_dir = choose(rng, site.log_dirs)
    log_dir.storage.remove(log_dir.file(META_PROPERTIES))
    return _of_directory(log_dir, META_PROPERTIES, "missing", "meta-missing")


@kind()
def directory_of_nothing(site: Site, rng: random.Random) -> Fault:
    log_dir = choose(rng, site.log_dirs)
    name = rng.choice(("lost+found", "orders", "backup-x", "-3"))
    log_dir.storage.make_dir(log_dir.file(name))
    return _of_directory(log_dir, name, "a directory", "directory-name")


def _of_directory(log_dir: LogDir, name: str, told: str, rules: str) -> Fault:
    file = log_dir.file(name)
    return Fault(f"{file}: {told}", file, frozenset((file,)), frozenset(rules.split()))
