"""A store of segments reads as the log directory that it was made from, whoever wrote it."""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.common.errors import ConfigError, StorageFailedError
from logstore.directory import layout
from logstore.manager import LogManager
from logstore.storage import Storage
from logstore.storage.uri import join_uri, log_directory, open_storage, shown
from logstore.verify import VerifyOptions, verify
from tests.support import stores
from tests.support.backups import flip
from tests.support.stores import Chunking
from tests.unit.verify.verify_logs import short


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stores.make_directory(tmp_path_factory.mktemp("source") / "data")


def _backup(root: Path, directory: Path) -> None:
    stores.put_backup(root, directory)


def _tiered(chunking: Chunking) -> Callable[[Path, Path], None]:
    def write(root: Path, directory: Path) -> None:
        for partition in sorted(directory.glob("orders-*")):
            stores.put_tiered(root, partition, stores.segments_of(partition), chunking)

    return write


def _local_tiered(root: Path, directory: Path) -> None:
    for partition in sorted(directory.glob("orders-*")):
        stores.put_local_tiered(root, partition, stores.segments_of(partition))


WRITERS: dict[str, Callable[[Path, Path], None]] = {
    "backup": _backup,
    "plain": _tiered(Chunking()),
    "fixed chunks": _tiered(Chunking(1000)),
    "one compressed chunk": _tiered(Chunking(0, compression=True)),
    "small compressed chunks": _tiered(Chunking(97, compression=True)),
    "compressed chunks": _tiered(Chunking(4096, compression=True)),
    "local tiered": _local_tiered,
}
INDEXES = (".index", ".timeindex", ".txnindex", ".snapshot")


@pytest.fixture(params=WRITERS)
def store(request: pytest.FixtureRequest, source: Path, tmp_path: Path) -> Path:
    WRITERS[request.param](tmp_path / "store", source)
    return tmp_path / "store"


def opened(root: Path) -> tuple[Storage, str]:
    return open_storage(log_directory(str(root)))


def content(storage: Storage, path: str) -> bytes:
    file = storage.open(path, writable=False)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def test_every_file_is_that_of_the_directory(store: Path, source: Path) -> None:
    storage, root = opened(store)
    assert [e.name for e in storage.scan_dir(root) if e.is_dir] == ["orders-0", "orders-1"]
    for partition in ("orders-0", "orders-1"):
        shown_files = {e.name: e.size for e in storage.scan_dir(f"{root}/{partition}")}
        originals = {p.name: p for p in (source / partition).iterdir()}
        logs = [name for name in shown_files if name.endswith(".log")]
        assert logs == sorted(
            n for n, p in originals.items() if n[-4:] == ".log" and p.stat().st_size
        )
        for name, size in shown_files.items():
            data = content(storage, f"{root}/{partition}/{name}")
            assert len(data) == size
            assert data == originals[name].read_bytes(), name
        kept = {n for n in originals if n.endswith(INDEXES) and f"{n[:20]}.log" in logs}
        assert kept - {f"{logs[0][:20]}.snapshot"} <= shown_files.keys()


def test_reads_at_any_place(store: Path, source: Path) -> None:
    storage, root = opened(store)
    original = (source / "orders-0" / f"{0:020d}.log").read_bytes()
    file = storage.open(f"{root}/orders-0/{0:020d}.log", writable=False)
    for start in (0, 1, 60, 96, 97, 98, 999, 1000, 4095, 4096, len(original) - 1, len(original)):
        for size in (0, 1, 3, 97, 100, 5000):
            assert file.read_at(start, size) == original[start : start + size]
            with file.view(start, size) as window:
                assert bytes(window) == original[start : start + size]
    file.close()


def test_a_view_verifies_clean(store: Path) -> None:
    report = verify([str(store)], VerifyOptions(threads=1))
    assert report.unusable == []
    assert [str(finding) for finding in report.findings] == []
    assert sum(each.records for each in report.partitions) == 190


def test_a_view_lists_as_partitions(store: Path, source: Path) -> None:
    ours = layout.list_partitions([str(store)])
    theirs = layout.list_partitions([str(source)])
    assert [(p.topic, p.partition, p.topic_id) for p in ours] == [
        (p.topic, p.partition, p.topic_id) for p in theirs
    ]
    for one, other in zip(ours, theirs, strict=True):
        bases = [s.base_offset for s in other.segments if s.size]
        assert [s.base_offset for s in one.segments] == bases


def test_nothing_can_be_written(store: Path) -> None:
    storage, root = opened(store)
    with pytest.raises(OSError, match="ead-only"):
        storage.open(f"{root}/orders-0/x", create=True)
    for call in (storage.lock, storage.remove, storage.make_dir, storage.remove_tree):
        with pytest.raises(OSError, match="ead-only"):
            call(f"{root}/.lock")


def test_what_is_not_there(store: Path) -> None:
    storage, root = opened(store)
    for path in (
        f"{root}/orders-7",
        f"{root}/x",
        f"{root}/orders-0/x",
        f"{root}/orders-0/a/b",
        "/none",
    ):
        assert storage.info(path) is None
        with pytest.raises((FileNotFoundError, NotADirectoryError)):
            storage.scan_dir(path)
        with pytest.raises(FileNotFoundError):
            storage.open(path, writable=False)
    with pytest.raises(OSError, match="directory"):
        storage.open(f"{root}/orders-0", writable=False)


# ---- names -----------------------------------------------------------------------------------


def test_a_view_has_a_uri_that_another_process_opens(store: Path) -> None:
    uri = log_directory(str(store))
    assert uri.startswith("tier")
    assert log_directory(uri) == uri
    assert shown(uri).startswith(str(store))
    below = join_uri(join_uri(uri, "orders-0"), f"{0:020d}.log")
    storage, path = open_storage(below)
    assert path == f"{shown(uri)}/orders-0/{0:020d}.log"
    assert storage.info(path) is not None
    assert open_storage(uri)[0] is storage


def test_a_partition_and_a_file_of_a_view_can_be_named(store: Path) -> None:
    root = shown(log_directory(str(store)))
    for name in ("orders-0", f"orders-0/{0:020d}.log"):
        storage, path = open_storage(log_directory(f"{root}/{name}"))
        assert path == f"{root}/{name}"
        assert storage.info(path) is not None
    assert log_directory(f"{root}/orders-0/a/b/c") == f"{root}/orders-0/a/b/c"
    assert [p.partition for p in layout.list_partitions([f"{root}/orders-1"])] == [1]
    assert len(layout.list_partitions([f"{root}/orders-*"])) == 2


def test_other_directories_are_themselves(source: Path, tmp_path: Path) -> None:
    for path in (source, source / "orders-0", tmp_path, tmp_path / "missing", source / "a" / "b"):
        assert log_directory(str(path)) == str(path)
    assert log_directory(f"file://{source}") == f"file://{source}"
    (tmp_path / "orders-MGJ6FHTfRYy67jzZdg6lSQ").mkdir()  # a name alone makes no store
    assert log_directory(str(tmp_path)) == str(tmp_path)


@pytest.mark.parametrize(
    "uri", ["tier", "tier+", "tier+/x", "tier9+file:///a", "tier1.2.3+file:///a", "tier+none://x"]
)
def test_uris_that_are_no_view(uri: str) -> None:
    if uri == "tier":
        assert open_storage(uri)[1] == "tier"
        return
    with pytest.raises((ConfigError, OSError)):
        open_storage(uri)


def test_a_named_view_of_no_store(source: Path) -> None:
    with pytest.raises(ConfigError, match="no backup"):
        open_storage(f"tier+file://{source}")


# ---- backups ---------------------------------------------------------------------------------


def test_the_newest_whole_backup_is_shown(source: Path, tmp_path: Path) -> None:
    commit = stores.put_backup(tmp_path, source)
    log_directory_of_first = log_directory(str(tmp_path))
    assert ".1+" in log_directory_of_first
    stores.put_commit(tmp_path, 2, {**commit, "number": 2, "topics": []})
    assert opened(tmp_path)[0].scan_dir(str(tmp_path))[0].is_file
    newest = tmp_path / "logstore-backup" / f"{2:020d}.json"
    newest.write_bytes(newest.read_bytes()[:-10])
    storage, root = opened(tmp_path)
    assert storage.info(f"{root}/orders-0") is not None
    # A view that was planned goes on with what it was planned on.
    assert open_storage(log_directory_of_first)[0].info(f"{root}/orders-0") is not None


def test_no_whole_backup_is_no_empty_one(source: Path, tmp_path: Path) -> None:
    stores.put_backup(tmp_path, source)
    path = tmp_path / "logstore-backup" / f"{1:020d}.json"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(OSError, match="damaged"):
        log_directory(str(tmp_path))
    report = verify([str(tmp_path)], VerifyOptions(threads=1))
    assert "damaged" in str(report.unusable)
    path.unlink()
    with pytest.raises(OSError, match="no backup yet"):
        log_directory(str(tmp_path))


def test_a_log_directory_stays_one_whatever_folder_is_put_in_it(
    source: Path, tmp_path: Path
) -> None:
    """A backup into the directory that it is of would else hide all that comes later."""
    for name in ("logstore-backup", "kafka-tiered-storage"):
        directory = tmp_path / name
        shutil.copytree(source, directory)
        _backup(directory, source)
        (directory / name).mkdir(exist_ok=True)
        assert log_directory(str(directory)) == str(directory)
        (directory / "meta.properties").unlink(missing_ok=True)
        assert log_directory(str(directory)) == str(directory)


def test_nobody_writes_logs_into_a_store_of_backups(source: Path, tmp_path: Path) -> None:
    _backup(tmp_path, source)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StorageFailedError, match="logstore restore"):
        LogManager([str(tmp_path)])
    assert sorted(tmp_path.rglob("*")) == before


def test_a_user_may_name_a_view_without_its_moment(store: Path) -> None:
    uri = f"tier+file://{store}"
    listed = layout.list_partitions([uri])
    assert [each.name for each in listed] == ["orders-0", "orders-1"]
    found = log_directory(uri)
    assert found == log_directory(found)
    if "backup" in {path.name.removeprefix("logstore-") for path in store.iterdir()}:
        assert found == log_directory(str(store))
    with pytest.raises(ConfigError, match="no backup"):
        log_directory(f"tier+file://{store.parent}")


def test_a_log_start_inside_a_segment(source: Path, tmp_path: Path) -> None:
    commit = stores.put_backup(tmp_path, source)
    commit["topics"][0]["partitions"][0]["logStart"] = 120
    stores.put_commit(tmp_path, 1, commit)
    (first, _) = layout.list_partitions([str(tmp_path)])
    assert first.log_start_offset == 120
    assert [s.base_offset for s in first.segments] == [114]


def test_a_partition_without_records(source: Path, tmp_path: Path) -> None:
    commit = stores.put_backup(tmp_path, source)
    commit["topics"][0]["partitions"][1] |= {"logStart": 52, "segments": []}
    stores.put_commit(tmp_path, 1, commit)
    (_, second) = layout.list_partitions([str(tmp_path)])
    assert [(s.base_offset, s.size) for s in second.segments] == [(52, 0)]
    assert verify([str(tmp_path)], VerifyOptions(threads=1)).findings == []


def test_another_store_in_the_place_of_one_is_read_anew(source: Path, tmp_path: Path) -> None:
    stores.put_backup(tmp_path / "store", source)
    assert len(layout.list_partitions([str(tmp_path / "store")])) == 2
    shutil.rmtree(tmp_path / "store")
    commit = stores.put_backup(tmp_path / "store", source)
    del commit["topics"][0]["partitions"][1]
    stores.put_commit(tmp_path / "store", 1, commit)
    assert len(layout.list_partitions([str(tmp_path / "store")])) == 1


def test_a_backup_without_high_watermarks_is_clean(source: Path, tmp_path: Path) -> None:
    commit = stores.put_backup(tmp_path, source)
    for part in commit["topics"][0]["partitions"]:
        part["highWatermark"] = -1
    stores.put_commit(tmp_path, 1, commit)
    assert verify([str(tmp_path)], VerifyOptions(threads=1)).findings == []
    (first, _) = layout.list_partitions([str(tmp_path)])
    assert first.high_watermark == commit["topics"][0]["partitions"][0]["end"]


# ---- damage ----------------------------------------------------------------------------------


def _object(root: Path, suffix: str, number: int = 0) -> Path:
    return sorted(root.glob(f"orders-*/0/*{suffix}"))[number]


def _delete(path: Path) -> None:
    path.unlink()


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


@pytest.mark.parametrize("damage", [_delete, _shorten, _lengthen, flip])
@pytest.mark.parametrize("suffix", [".log", ".indexes"])
def test_damage_of_a_backup_is_named(
    source: Path, tmp_path: Path, suffix: str, damage: Callable[[Path], None]
) -> None:
    stores.put_backup(tmp_path, source)
    path = _object(tmp_path, suffix)
    damage(path)
    report = verify([str(tmp_path)], VerifyOptions(threads=1))
    told = [str(each) for each in (*report.findings, *report.unusable)]
    assert told
    if damage is not flip or suffix == ".indexes":
        assert any(path.name in each for each in told), told


def test_a_hole_is_refused_with_its_offsets(source: Path, tmp_path: Path) -> None:
    directory = source / "orders-0"
    segments = stores.segments_of(directory)
    stores.put_tiered(tmp_path, directory, segments)
    far = stores.segments_of(directory, 1)[1]
    far.base, far.end = far.base + 1000, far.end + 1000
    stores.put_tiered(tmp_path, directory, [far])
    with pytest.raises(OSError, match=r"offsets 138 to 1113 are in no segment.*try again"):
        opened(tmp_path)[0].scan_dir(f"{tmp_path}/orders-0")


def test_an_end_that_no_log_has_hides_no_segment(source: Path, tmp_path: Path) -> None:
    directory = source / "orders-0"
    segments = stores.recut(directory, [0, 20, 30, stores.batch_count(directory)])
    end = segments[0].end
    for segment in segments:
        segment.epochs = [(0, 0)]
    segments[0].end = segments[-1].end + 1
    stores.put_tiered(tmp_path, directory, segments)
    with pytest.raises(OSError, match=f"ends at offset {end}, and {segments[0].end} by its"):
        opened(tmp_path)[0].scan_dir(f"{tmp_path}/orders-0")


def test_a_store_in_a_folder_whose_name_is_no_text(source: Path, tmp_path: Path) -> None:
    root = tmp_path / os.fsdecode(b"bad\xff")
    _backup(root, source)
    listed = layout.list_partitions([str(root)])
    assert [each.name for each in listed] == ["orders-0", "orders-1"]
    assert not verify([str(root)], VerifyOptions(threads=1)).findings
    assert shown(log_directory(str(root))) == str(root)


def test_a_hole_of_a_backup_was_one_of_its_source(source: Path, tmp_path: Path) -> None:
    """Nothing is listed for a backup, so no listing lags."""
    commit = stores.put_backup(tmp_path, source)
    commit["topics"][0]["partitions"][0]["segments"][0]["end"] = 100
    stores.put_commit(tmp_path, 1, commit)
    with pytest.raises(OSError, match=r"offsets 100 to 113 are not in this.*restore") as error:
        opened(tmp_path)[0].scan_dir(f"{tmp_path}/orders-0")
    assert "listing" not in str(error.value)


def test_a_backup_that_lacks_its_end_is_refused(source: Path, tmp_path: Path) -> None:
    commit = stores.put_backup(tmp_path, source)
    commit["topics"][0]["partitions"][0]["segments"].pop()
    stores.put_commit(tmp_path, 1, commit)
    with pytest.raises(OSError, match="offsets 114 to 137 are in no segment"):
        opened(tmp_path)[0].scan_dir(f"{tmp_path}/orders-0")


def test_what_has_no_manifest_is_no_segment(source: Path, tmp_path: Path) -> None:
    for partition in sorted(source.glob("orders-*")):
        stores.put_tiered(tmp_path, partition, stores.segments_of(partition))
    _object(tmp_path, ".rsm-manifest", 1).unlink()
    storage, root = opened(tmp_path)
    logs = [e.name for e in storage.scan_dir(f"{root}/orders-0") if e.name.endswith(".log")]
    assert logs == [f"{0:020d}.log"]


def test_an_encrypted_segment_says_what_it_needs(source: Path, tmp_path: Path) -> None:
    directory = source / "orders-0"
    segments = stores.segments_of(directory)
    stores.put_tiered(tmp_path, directory, segments, Chunking(1000, encryption=True))
    storage, root = opened(tmp_path)
    assert len(storage.scan_dir(f"{root}/orders-0")) > 2
    with pytest.raises(OSError, match="is encrypted, by a key that the RSA key 'key1' unwraps"):
        storage.open(f"{root}/orders-0/{0:020d}.log", writable=False)


@pytest.mark.parametrize("damage", [_delete, _shorten, flip])
def test_damage_of_compressed_chunks_is_found(
    source: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """A frame has no checksum here, but every batch in it has."""
    directory = source / "orders-0"
    segments = stores.segments_of(directory)
    stores.put_tiered(tmp_path, directory, segments, Chunking(4096, compression=True))
    path = _object(tmp_path, ".log")
    damage(path)
    report = verify([str(tmp_path)], VerifyOptions(threads=1))
    assert report.findings or report.unusable
    if damage is not flip:
        assert path.name in str([*report.findings, *report.unusable])


# ---- overlaps --------------------------------------------------------------------------------


def shown_log(storage: Storage, path: str) -> bytes:
    """All bytes of a partition; fails if an offset is there twice or out of order."""
    logs = [e.name for e in storage.scan_dir(path) if e.name.endswith(".log")]
    data = b"".join(content(storage, f"{path}/{name}") for name in logs)
    offsets = [int.from_bytes(batch[:8], "big") for batch in stores.batches_of(data)]
    assert offsets == sorted(set(offsets))
    return data


def whole_log(directory: Path) -> bytes:
    return b"".join(segment.log for segment in stores.segments_of(directory))


def _random_borders(draw: random.Random, count: int) -> list[int]:
    inner = draw.sample(range(1, count), draw.randint(0, 4))
    return sorted({0, count, *inner})


@pytest.mark.parametrize("seed", range(12))
def test_copies_with_other_borders_make_the_same_log(
    source: Path, tmp_path: Path, seed: int
) -> None:
    """Two leaders copied the same offsets, in other segments; some copies are missing."""
    draw = random.Random(seed)
    directory = source / "orders-0"
    count = stores.batch_count(directory)
    first = stores.recut(directory, _random_borders(draw, count), 1)
    second = stores.recut(directory, _random_borders(draw, count), 2)
    dropped = draw.choice(second)
    chunking = Chunking(draw.choice((0, 333)), compression=True)
    stores.put_tiered(tmp_path, directory, first, draw.choice((Chunking(), chunking)))
    stores.put_tiered(tmp_path, directory, [s for s in second if s is not dropped], chunking)
    storage, root = opened(tmp_path)
    assert shown_log(storage, f"{root}/orders-0") == whole_log(directory)
    report = verify([str(tmp_path)], VerifyOptions(threads=1))
    assert short(report) == []
    assert report.unusable == []


def test_a_cut_inside_a_batch_is_refused(source: Path, tmp_path: Path) -> None:
    directory = source / "orders-0"
    count = stores.batch_count(directory)
    (whole,) = stores.recut(directory, [0, count])
    *_, late = stores.recut(directory, [0, 40, count], 2)
    wide = next(b for b in stores.batches_of(late.log) if int.from_bytes(b[23:27], "big") > 1)
    base = int.from_bytes(wide[:8], "big") + 1
    position = late.log.index(wide)
    moved = base.to_bytes(8, "big") + wide[8:]
    torn = dataclasses.replace(late, base=base, log=moved + late.log[position + len(wide) :])
    torn.index = torn.timeindex = torn.txnindex = b""
    torn.end += 10
    stores.put_tiered(tmp_path, directory, [whole, torn])
    with pytest.raises(OSError, match=f"no batch begins at offset {base}"):
        opened(tmp_path)[0].scan_dir(f"{tmp_path}/orders-0")


def test_segments_of_two_histories_are_never_joined(source: Path, tmp_path: Path) -> None:
    """Epochs may be equal by a mistake of somebody; the batch at the border is not."""
    directory = source / "orders-0"
    count = stores.batch_count(directory)
    (whole,) = stores.recut(directory, [0, count])
    *_, late = stores.recut(directory, [0, 40, count], 2)
    first = next(stores.batches_of(late.log))
    other = first[:17] + bytes(4) + first[21:]  # another checksum: another content
    late.log, late.end = other + late.log[len(first) :], late.end + 1
    stores.put_tiered(tmp_path, directory, [whole, late])
    with pytest.raises(OSError, match="two histories") as error:
        opened(tmp_path)[0].scan_dir(f"{tmp_path}/orders-0")
    assert stores.text_of(late.id) in str(error.value)


def test_an_unclean_election_leaves_segments_that_are_not_read(
    source: Path, tmp_path: Path
) -> None:
    directory = source / "orders-0"
    count = stores.batch_count(directory)
    segments = stores.recut(directory, [0, 20, 25, count])
    lost = stores.recut(directory, [0, 20, 30], 2)[1]
    lost.log = b"".join(b[:21] + b"\xff" + b[22:] for b in stores.batches_of(lost.log))
    lost.epochs = [*lost.epochs[:-1], (lost.epochs[-1][0] + 1, lost.base + 1)]
    stores.put_tiered(tmp_path, directory, [*segments, lost])
    storage, root = opened(tmp_path)
    try:
        shown_bytes = shown_log(storage, f"{root}/orders-0")
    except OSError as refused:
        pytest.fail(f"what was lost counts: {refused}")
    assert shown_bytes == whole_log(directory)


def test_a_topic_made_anew_is_not_mixed_with_the_old_one(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = source / "orders-0"
    old, new = stores.segments_of(directory)[:1], stores.segments_of(directory, 2)
    stores.put_tiered(tmp_path, directory, old)
    (folder,) = tmp_path.iterdir()
    folder.rename(tmp_path / "orders-MGJ6FHTfRYy67jzZdg6lSQ")
    for path in (tmp_path / "orders-MGJ6FHTfRYy67jzZdg6lSQ").rglob("*"):
        os.utime(path, (1, 1))
    stores.put_tiered(tmp_path, directory, new)
    storage, root = opened(tmp_path)
    assert shown_log(storage, f"{root}/orders-0") == whole_log(directory)
    assert "several topic ids" in caplog.text
    assert "MGJ6FHTfRYy67jzZdg6lSQ" in caplog.text


def test_offsets_above_40_bits_and_segments_of_more_than_31(source: Path, tmp_path: Path) -> None:
    """A batch far behind the base, as compaction leaves it; relative offsets stop at 31 bits."""
    directory = source / "orders-0"
    segment = stores.segments_of(directory)[0]
    batch = next(stores.batches_of(segment.log))
    base, far = 2**40, 2**40 + 2**33
    segment.log = (base).to_bytes(8, "big") + batch[8:] + far.to_bytes(8, "big") + batch[8:]
    segment.base, segment.end = base, far + 100
    segment.index = segment.timeindex = segment.txnindex = segment.snapshot = b""
    segment.epochs = [(0, 0)]
    following = dataclasses.replace(segment, base=far, end=far + 1000)
    following.log = far.to_bytes(8, "big") + batch[8:]
    following.id = stores.uuid.UUID(int=2**100)
    stores.put_tiered(tmp_path, directory, [segment, following])
    storage, root = opened(tmp_path)
    assert len(shown_log(storage, f"{root}/orders-0")) == 2 * len(batch)
    assert storage.info(f"{root}/orders-0/{far:020d}.log") is not None
