"""The crash model: what may and what may not be lost, and that every fault strikes as promised."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints import Files, replace_file
from logstore.testing import FaultyStorage, ManualClock, SimulatedCrash
from logstore.testing.faulty import FOREVER, SECTOR_SIZE, CrashMode

SEEDS = range(200)


def disk_with(path: str, durable: bytes) -> FaultyStorage:
    """A disk on which ``path`` has durable content and a durable name."""
    disk = FaultyStorage()
    disk.write_file(path, durable)
    disk.sync_dir("/")
    return disk


def content(disk: FaultyStorage, path: str) -> bytes | None:
    return disk.read_file(path) if disk.info(path) else None


def states(build: Callable[[], FaultyStorage], path: str = "/f") -> set[bytes | None]:
    """What crashes of many seeds leave of one file."""
    found = set()
    for seed in SEEDS:
        disk = build()
        disk.crash(random.Random(seed))
        found.add(content(disk, path))
    return found


# --- content


def test_synced_content_survives_every_crash() -> None:
    def build() -> FaultyStorage:
        disk = disk_with("/f", b"")
        file = disk.open("/f")
        file.write_at(0, b"a" * 1000)
        file.write_at(500, b"b" * 1000)
        file.truncate(1200)
        file.sync()
        return disk

    assert states(build) == {b"a" * 500 + b"b" * 700}


def test_all_lost_and_all_kept() -> None:
    for mode, expected in (("all_lost", b"old"), ("all_kept", b"old and new")):
        disk = disk_with("/f", b"old")
        disk.open("/f").write_at(3, b" and new")
        disk.write_file("/g", b"synced, but without a durable name")
        disk.crash(mode=mode)
        assert disk.read_file("/f") == expected
        assert (disk.info("/g") is not None) == (mode == "all_kept")


def test_after_a_kill_a_power_cut_may_still_take_what_was_dirty() -> None:
    disk = disk_with("/f", b"old")
    disk.open("/f").write_at(3, b" and new")
    disk.crash(mode="all_kept")
    disk.crash(mode="all_lost")
    assert disk.read_file("/f") == b"old"


def test_an_append_may_be_kept_lost_short_torn_or_zero() -> None:
    """F-14 … F-16 of the fault list."""
    old, new = b"o" * 300, b"n" * 1500

    def build() -> FaultyStorage:
        disk = disk_with("/f", old)
        disk.open("/f").write_at(300, new)
        return disk

    found = states(build)
    assert {old, old + new, old + bytes(1500)} <= found
    assert any(len(data or b"") not in (300, 1800) for data in found)
    sector_gap = old + bytes(SECTOR_SIZE - 300)
    assert any(data and data.startswith(sector_gap) and b"n" in data for data in found)
    for data in found:
        assert data is not None
        assert data[:300] == old
        assert len(data) <= 1800
        assert set(data[300:]) <= {0, ord("n")}


def test_an_overwrite_is_old_or_new_by_the_sector() -> None:
    def build() -> FaultyStorage:
        disk = disk_with("/f", b"o" * 4 * SECTOR_SIZE)
        disk.open("/f").write_at(0, b"n" * 4 * SECTOR_SIZE)
        return disk

    found = states(build)
    torn = 0
    for data in found:
        assert data is not None
        assert len(data) == 4 * SECTOR_SIZE
        sectors = [set(data[at : at + SECTOR_SIZE]) for at in range(0, len(data), SECTOR_SIZE)]
        torn += sum(len(sector) > 1 for sector in sectors)
        assert sum(len(sector) > 1 for sector in sectors) <= 1
    assert torn
    assert len(found) > 10


def test_a_truncation_may_be_lost_although_later_writes_were_kept() -> None:
    """S-37, F-18 of the fault list."""

    def build() -> FaultyStorage:
        disk = disk_with("/f", b"o" * 100)
        file = disk.open("/f")
        file.truncate(40)
        file.write_at(40, b"n" * 20)
        return disk

    found = states(build)
    kept, cut = b"o" * 40, b"o" * 40 + b"n" * 20
    assert {cut, kept, cut + b"o" * 40, b"o" * 100, kept + bytes(20)} <= found
    for data in found:
        assert data is not None
        assert data[:40] == kept
        assert len(data) in range(40, 61) or len(data) == 100


def test_a_preallocated_file_may_come_back_at_its_full_size() -> None:
    """S-30, S-32: an index that was mapped large and trimmed before it was synced."""

    def build() -> FaultyStorage:
        disk = disk_with("/f", b"")
        file = disk.open("/f")
        mapping = file.map(5000)
        mapping.reserve(8)
        mapping.buffer[:8] = b"12345678"
        mapping.close()
        file.truncate(8)
        return disk

    found = states(build)
    assert {b"", b"12345678", bytes(5000), b"12345678" + bytes(4992)} <= found


@pytest.mark.slow
@settings(max_examples=150)
@given(st.data())
def test_durable_bytes_that_nobody_touched_never_change(data: st.DataObject) -> None:
    """Against a model: bytes that are the same in every content since the last sync are safe."""
    disk = disk_with("/f", b"")
    file = disk.open("/f")
    history = [b""]
    for _ in range(data.draw(st.integers(0, 12))):
        action = data.draw(st.sampled_from(["write", "truncate", "sync"]))
        if action == "write":
            position = data.draw(st.integers(0, 1500))
            file.write_at(position, data.draw(st.binary(min_size=1, max_size=900)))
        elif action == "truncate":
            file.truncate(data.draw(st.integers(0, 2000)))
        else:
            file.sync()
            history.clear()
        history.append(file.read_at(0, 5000))
    if len(history) == 1:
        assert disk.durable_bytes("/f") == history[0]
    disk.crash(random.Random(data.draw(st.integers(0, 1000))))
    left = disk.read_file("/f")
    assert min(map(len, history)) <= len(left) <= max(map(len, history))
    for position, byte in enumerate(left):
        past = [h[position] if position < len(h) else 0 for h in history]
        assert byte in past or byte == 0


# --- mappings


def test_stores_through_a_mapping_are_lost_without_a_sync() -> None:
    def build(sync: bool) -> FaultyStorage:
        disk = disk_with("/f", b"")
        file = disk.open("/f")
        mapping = file.map(100)
        file.sync()
        mapping.reserve(8)
        mapping.buffer[:8] = b"12345678"
        if sync:
            file.sync()
        return disk

    assert {bytes(100), b"12345678" + bytes(92)} <= states(lambda: build(False))
    assert states(lambda: build(True)) == {b"12345678" + bytes(92)}


def test_after_a_crash_handles_and_locks_are_void() -> None:
    for mode in ("all_lost", "all_kept", "random"):
        disk = disk_with("/f", b"abc")
        disk.lock("/.lock")
        file = disk.open("/f")
        mapping = file.map(10)
        buffer = mapping.buffer
        disk.crash(random.Random(0), mode=mode)
        buffer[:3] = b"zzz"  # into memory that nobody reads any more
        for call in (
            file.size,
            file.sync,
            lambda file=file: file.read_at(0, 1),
            lambda file=file: file.write_at(0, b"x"),
            lambda mapping=mapping: mapping.reserve(1),
            lambda mapping=mapping: mapping.buffer,
        ):
            with pytest.raises(OSError) as error:
                call()
            assert error.value.errno == errno.ESTALE
        mapping.close()
        file.close()
        disk.lock("/.lock").release()
        assert disk.read_file("/f")[:3] == b"abc"
        disk.open("/f").map(20).close()


# --- names


def names_after(build: Callable[[], FaultyStorage]) -> set[tuple[tuple[str, bytes], ...]]:
    found = set()
    for seed in SEEDS:
        disk = build()
        disk.crash(random.Random(seed))
        found.add(tuple((e.name, disk.read_file("/" + e.name)) for e in disk.scan_dir("/")))
    return found


def test_names_wait_for_the_directory_and_changes_are_independent() -> None:
    """S-36, F-17 of the fault list: a synced file can lose its name."""

    def build() -> FaultyStorage:
        disk = FaultyStorage()
        disk.write_file("/a", b"1")
        disk.write_file("/b", b"2")
        return disk

    a, b = ("a", b"1"), ("b", b"2")
    assert names_after(build) == {(), (a,), (b,), (a, b)}

    def synced() -> FaultyStorage:
        disk = build()
        disk.sync_dir("/")
        return disk

    assert names_after(synced) == {(a, b)}


def test_a_rename_is_done_or_not_and_never_half() -> None:
    def build() -> FaultyStorage:
        disk = disk_with("/a", b"old")
        disk.write_file("/b", b"new")
        disk.sync_dir("/")
        disk.rename("/b", "/a")
        return disk

    assert names_after(build) == {(("a", b"new"),), (("a", b"old"), ("b", b"new"))}


def test_a_chain_of_renames_leaves_one_name() -> None:
    """S-38: ``.cleaned`` to ``.swap`` to the final name."""

    def build() -> FaultyStorage:
        disk = disk_with("/x.cleaned", b"1")
        disk.rename("/x.cleaned", "/x.swap")
        disk.rename("/x.swap", "/x")
        return disk

    assert names_after(build) == {((name, b"1"),) for name in ("x.cleaned", "x.swap", "x")}


def test_a_removal_may_be_lost() -> None:
    found = set()
    for seed in SEEDS:
        disk = disk_with("/a", b"1")
        disk.remove("/a")
        disk.write_file("/a", b"2")
        disk.crash(random.Random(seed))
        found.add(content(disk, "/a"))
    assert found == {b"1", b"2", None}


def test_a_lost_directory_takes_its_files_along() -> None:
    """F-28: creating a partition directory does not sync its parent."""
    disk = FaultyStorage()
    disk.make_dir("/d/t-0")
    disk.write_file("/d/t-0/log", b"1")
    disk.sync_dir("/d/t-0")
    disk.crash(mode="all_lost")
    assert disk.scan_dir("/") == []


def test_a_rename_between_directories_is_durable_with_either() -> None:
    for synced in ("/a", "/b"):
        disk = FaultyStorage()
        disk.make_dir("/a")
        disk.make_dir("/b")
        disk.write_file("/a/x", b"1")
        for path in ("/", "/a", "/b"):
            disk.sync_dir(path)
        disk.rename("/a/x", "/b/y")
        disk.sync_dir(synced)
        disk.crash(mode="all_lost")
        assert disk.scan_dir("/a") == []
        assert disk.read_file("/b/y") == b"1"


def test_remove_tree_can_stop_anywhere() -> None:
    found = set()
    for count in range(1, 5):
        disk = FaultyStorage()
        disk.make_dir("/d")
        disk.write_file("/d/1", b"")
        disk.write_file("/d/2", b"")
        disk.crash_after(count)
        try:
            disk.remove_tree("/d")
        except SimulatedCrash:
            disk.crash(mode="all_kept")
        found.add(tuple(e.name for e in disk.scan_dir("/d")) if disk.info("/d") else None)
    assert found == {("1", "2"), ("2",), (), None}


# --- replacing a checkpoint (S-39)


def without_file_sync(files: FaultyStorage, path: str, data: bytes) -> None:
    file = files.open(path + ".tmp", create=True)
    file.truncate(0)
    file.write_at(0, data)
    file.close()
    files.rename(path + ".tmp", path)
    files.sync_dir("/")


def without_directory_sync(files: Files, path: str, data: bytes) -> None:
    files.write_file(path + ".tmp", data)
    files.rename(path + ".tmp", path)


OLD, NEW = b"0\n1\nt 0 1\n", b"0\n2\nt 0 2\nt 1 5\n"


def replacement_states(replace: Callable[..., None]) -> Iterator[tuple[bool, bytes | None]]:
    """``(whether replace returned, content)`` after a crash before each change and after the last,
    each with many seeds, from a disk with a stale ``.tmp``."""
    for count in range(1, 12):
        for seed in range(60):
            disk = disk_with("/x", OLD)
            disk.write_file("/x.tmp", b"stale and much longer than any of the two others are")
            if seed % 2:
                disk.sync_dir("/")
            disk.crash_after(count)
            try:
                replace(disk, "/x", NEW)
                returned = True
            except SimulatedCrash:
                returned = False
            mode = ("random", "random", "all_lost", "all_kept")[seed % 4]
            disk.crash(random.Random(seed), mode=mode)
            yield returned, content(disk, "/x")


def test_replace_file_leaves_the_old_text_or_the_new() -> None:
    """S-39: wholly old or wholly new in every state; new in every state after it returned."""
    found = set(replacement_states(replace_file))
    assert found == {(False, OLD), (False, NEW), (True, NEW)}


def test_replacing_without_a_file_sync_shows_an_empty_or_short_file() -> None:
    """S-39: the mutant must fail, or the model is too weak."""
    found = {data for _, data in replacement_states(without_file_sync)}
    assert b"" in found
    assert any(data not in (OLD, NEW) and data for data in found)


def test_replacing_without_a_directory_sync_forgets_the_new_text() -> None:
    assert (True, OLD) in set(replacement_states(without_directory_sync))


# --- crash points


def test_a_planned_crash_stops_everything_until_the_restart() -> None:
    disk = disk_with("/f", b"old")
    file = disk.open("/f")
    disk.crash_after(2)
    file.write_at(0, b"1")
    before = disk.operations
    with pytest.raises(SimulatedCrash):
        file.write_at(0, b"2")
    for call in (
        lambda: file.write_at(0, b"3"),
        lambda: file.read_at(0, 1),
        file.sync,
        lambda: disk.sync_dir("/"),
        lambda: disk.read_file("/f"),
        lambda: disk.write_file("/g", b""),
        lambda: disk.rename("/f", "/g"),
        lambda: disk.remove("/f"),
        lambda: disk.scan_dir("/"),
    ):
        with pytest.raises(SimulatedCrash):
            call()
    assert disk.operations == before + 1
    disk.crash(mode="all_kept")
    assert disk.read_file("/f") == b"1ld"
    disk.write_file("/g", b"works again")


def test_operations_count_changes_and_not_reads() -> None:
    disk = FaultyStorage()
    disk.write_file("/f", b"abc")  # create, write, sync
    assert disk.operations == 3
    disk.read_file("/f")
    disk.scan_dir("/")
    disk.info("/f")
    disk.open("/f").close()
    assert disk.operations == 3
    disk.sync_dir("/")
    disk.rename("/f", "/g")
    disk.make_dir("/a/b")
    assert disk.operations == 7


# --- faults


def test_each_operation_fails_where_and_when_it_was_asked_to() -> None:
    disk = disk_with("/f", b"abc")
    disk.write_file("/other", b"abc")
    file, other = disk.open("/f"), disk.open("/other")
    mapping = file.map(100)
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: file.read_at(0, 1),
        "write": lambda: file.write_at(0, b"x"),
        "sync": file.sync,
        "sync_dir": lambda: disk.sync_dir("/"),
        "open": lambda: disk.open("/f"),
        "truncate": lambda: file.truncate(100),
        "map": lambda: file.map(100),
        "reserve": lambda: mapping.reserve(1),
        "list": lambda: disk.scan_dir("/"),
        "make_dir": lambda: disk.make_dir("/f-dir"),
        "rename": lambda: disk.rename("/f", "/moved"),
        "remove": lambda: disk.remove("/moved"),
    }
    for operation, call in calls.items():
        path = {"sync_dir": "/", "list": "/"}.get(operation, "/[fm]*")
        fault = disk.fail(operation, path, error=errno.ENOMEM)
        other.write_at(0, other.read_at(0, 1))
        other.sync()
        with pytest.raises(OSError) as error:
            call()
        assert error.value.errno == errno.ENOMEM
        assert fault.struck == 1
        call()  # once only
        assert disk.struck[operation] == 1
    with pytest.raises(ValueError):
        disk.fail("typo")


def test_faults_can_wait_and_last() -> None:
    disk = disk_with("/f", b"abc")
    fault = disk.fail("read", after=2, times=FOREVER)
    disk.read_file("/f")
    disk.read_file("/f")
    for _ in range(3):
        with pytest.raises(OSError):
            disk.read_file("/f")
    assert fault.struck == 3
    disk.heal()
    disk.read_file("/f")


def test_a_failed_write_may_leave_a_part() -> None:
    disk = disk_with("/f", b"")
    file = disk.open("/f")
    lengths = set()
    for partial in (0, 2, 99, random.Random(1), random.Random(2)):
        file.truncate(0)
        disk.fail("write", partial=partial)
        with pytest.raises(OSError):
            file.write_at(0, b"abcdef")
        assert b"abcdef".startswith(file.read_at(0, 9))
        lengths.add(file.size())
    assert {0, 2, 6} <= lengths


def test_a_failed_sync_is_not_made_good_by_a_later_one() -> None:
    """S-44, F-224: the pages count as clean and are not on the disk."""
    disk = disk_with("/f", b"old")
    file = disk.open("/f")
    file.write_at(3, b"LOST")
    disk.fail("sync")
    with pytest.raises(OSError):
        file.sync()
    assert file.read_at(0, 9) == b"oldLOST"  # the cache still shows it
    file.sync()
    file.write_at(7, b"kept")
    file.sync()
    assert disk.durable_bytes("/f") == b"old\0\0\0\0kept"
    for seed in range(20):
        other = random.Random(seed)
        disk.crash(other)
        assert disk.read_file("/f") == b"old\0\0\0\0kept"


def test_a_failed_sync_loses_mapped_stores_too() -> None:
    disk = disk_with("/f", b"")
    file = disk.open("/f")
    mapping = file.map(20)
    file.sync()
    mapping.reserve(20)
    mapping.buffer[0:4] = b"LOST"
    disk.fail("sync")
    with pytest.raises(OSError):
        file.sync()
    mapping.buffer[8:12] = b"kept"
    file.sync()
    assert file.read_at(0, 20) == b"LOST\0\0\0\0kept" + bytes(8)
    assert disk.durable_bytes("/f") == bytes(8) + b"kept" + bytes(8)


def test_evicted_pages_of_a_failed_sync_read_as_they_are_on_the_disk() -> None:
    disk = disk_with("/f", b"old")
    file = disk.open("/f")
    file.write_at(0, b"newer")
    disk.fail("sync")
    with pytest.raises(OSError):
        file.sync()
    file.write_at(1, b"D")
    disk.evict("/f")
    assert file.read_at(0, 9) == b"oDd\0\0"


def test_what_a_failed_sync_left_out_needs_another_write() -> None:
    disk = disk_with("/f", b"old")
    file = disk.open("/f")
    file.write_at(3, b"lostLOST")
    disk.fail("sync")
    with pytest.raises(OSError):
        file.sync()
    file.write_at(7, file.read_at(7, 100))
    assert disk.durable_bytes("/f") == b"old"
    file.sync()
    assert disk.durable_bytes("/f") == b"old\0\0\0\0LOST"
    disk.evict("/f")
    assert file.read_at(0, 20) == b"old\0\0\0\0LOST"


def test_a_full_disk() -> None:
    """S-42: a prefix may be written; freed room can be used again."""
    disk = FaultyStorage(capacity=1000)
    disk.write_file("/a", bytes(600))
    file = disk.open("/b", create=True)
    with pytest.raises(OSError) as error:
        file.write_at(0, b"x" * 1000)
    assert error.value.errno == errno.ENOSPC
    assert file.size() == 400
    with pytest.raises(OSError):
        file.truncate(401)
    file.write_at(0, b"y" * 400)  # overwriting takes no room
    disk.remove("/a")
    file.truncate(100)
    mapping = file.map(5000)  # sparse
    mapping.reserve(1000)
    with pytest.raises(OSError) as error:
        mapping.reserve(1001)
    assert error.value.errno == errno.ENOSPC
    mapping.close()
    file.truncate(0)
    disk.write_file("/c", bytes(1000))
    assert disk.struck["disk_full"] == 3


def test_capacity_is_counted_anew_after_a_crash() -> None:
    disk = FaultyStorage(capacity=1000)
    disk.write_file("/a", bytes(1000))
    disk.crash(mode="all_lost")
    disk.write_file("/b", bytes(1000))
    disk.sync_dir("/")
    disk.remove("/b")
    disk.crash(mode="all_lost")  # the removal is lost
    assert disk.read_file("/b") == bytes(1000)
    with pytest.raises(OSError):
        disk.write_file("/c", b"1")


def test_flips_at_rest_and_on_read() -> None:
    """F-19 and F-20 of the fault list."""
    disk = disk_with("/f", b"abc")
    disk.flip("/f", 1, 0x20)
    assert disk.read_file("/f") == b"aBc"
    disk.crash(mode="all_lost")
    assert disk.read_file("/f") == b"aBc"
    fault = disk.flip_reads("/f", random.Random(3))
    assert disk.read_file("/f") != b"aBc"
    assert disk.read_file("/f") == b"aBc"
    assert fault.struck == 1
    assert disk.struck["flip"] == disk.struck["read_flip"] == 1


# --- time, wrong places, empty disks, no descriptors


def test_a_slow_disk_says_how_much_time_passed() -> None:
    """Nothing waits: who runs the clock reads ``busy_ms`` and lets the time pass."""
    disk = FaultyStorage()
    asked: list[tuple[str, str]] = []

    def latency(operation: str, path: str) -> int:
        asked.append((operation, path))
        return {"sync": 40, "write": 3}.get(operation, 0)

    disk.latency = latency
    file = disk.open("/f", create=True)
    file.write_at(0, b"abc")
    assert disk.busy_ms == 3
    file.sync()
    assert (disk.busy_ms, disk.struck["slow"]) == (43, 2)
    file.read_at(0, 3)
    disk.sync_dir("/")
    assert disk.busy_ms == 43
    disk.fail("sync")
    with pytest.raises(OSError):
        file.sync()  # a failure takes its time too
    assert (disk.busy_ms, disk.struck["slow"]) == (83, 3)
    assert {operation for operation, _ in asked} == {"open", "write", "sync", "read", "sync_dir"}
    disk.latency = None
    file.sync()
    assert disk.busy_ms == 83


def test_a_misdirected_write_shows_when_the_cache_is_gone() -> None:
    """The sync succeeds; the right place keeps what it had, and a wrong one gets the data."""
    found = set()
    for seed in SEEDS:
        disk = disk_with("/f", b"a" * 2000)
        disk.write_file("/other", b"o" * 2000)
        disk.sync_dir("/")
        file = disk.open("/f")
        fault = disk.misdirect("/f", random.Random(seed))
        file.write_at(512, b"B" * 600)
        file.sync()
        assert (fault.struck, disk.struck["misdirected"]) == (1, 1)
        assert disk.read_file("/f") == b"a" * 512 + b"B" * 600 + b"a" * 888  # from the cache
        assert disk.read_file("/other") == b"o" * 2000
        disk.crash(mode="all_kept")
        assert disk.read_file("/f")[512:1112] == b"B" * 600
        disk.crash(mode="all_lost")
        kept, other = disk.read_file("/f"), disk.read_file("/other")
        assert len(kept) == len(other) == 2000
        assert kept[512:1112] != b"B" * 600
        where = "other" if b"B" in other else "f" if b"B" in kept else "nowhere"
        found.add((where, (other if where == "other" else kept).find(b"B")))
    assert found == {
        *(("other", position) for position in (0, 512, 1024, 1536)),
        *(("f", position) for position in (0, 1024, 1536)),
        ("nowhere", -1),
    }


def test_a_misdirected_write_waits_for_one_and_spares_the_rest() -> None:
    disk = disk_with("/f", b"a" * 100)
    fault = disk.misdirect("/f", random.Random(5), after=1)
    file = disk.open("/f")
    file.sync()  # nothing to write: does not count
    file.write_at(0, b"one")
    file.sync()
    assert (fault.struck, disk.durable_bytes("/f")[:4]) == (0, b"onea")
    file.write_at(0, b"two")
    file.write_at(50, b"three")
    file.sync()
    assert fault.struck == 1
    image = disk.durable_bytes("/f")
    assert (image[:3] == b"two") != (image[50:55] == b"three") or b"two" not in image
    file.write_at(0, file.read_at(0, 100))
    file.sync()
    assert disk.durable_bytes("/f") == disk.read_file("/f")
    disk.misdirect("/f", random.Random(5))
    disk.heal()
    file.write_at(0, b"new")
    file.sync()
    assert disk.durable_bytes("/f")[:3] == b"new"


def test_a_misdirected_write_and_eviction() -> None:
    disk = disk_with("/f", b"a" * 600)
    file = disk.open("/f")
    disk.misdirect("/f", random.Random(2))
    file.write_at(0, b"b" * 600)
    file.sync()
    disk.evict("/f")
    assert disk.read_file("/f") == disk.durable_bytes("/f") != b"b" * 600


@pytest.mark.parametrize("mode", ["all_kept", "all_lost", "random"])
def test_a_wiped_disk_is_empty_for_good(mode: CrashMode) -> None:
    disk = FaultyStorage(capacity=5000)
    for directory in ("/a", "/b/c"):
        disk.make_dir(directory)
        disk.write_file(f"{directory}/f", b"x" * 2000)
    for directory in ("/", "/a", "/b", "/b/c"):
        disk.sync_dir(directory)
    disk.rename("/b/c/f", "/b/g")  # under way
    disk.crash(random.Random(1), "all_kept")
    disk.wipe("/b")
    assert disk.struck["wipe"] == 1
    assert disk.scan_dir("/b") == []
    disk.crash(random.Random(1), mode)
    assert disk.scan_dir("/b") == []
    assert disk.read_file("/a/f") == b"x" * 2000
    disk.write_file("/b/new", b"y" * 3000)  # there is room again
    disk.sync_dir("/b")
    disk.crash(mode="all_lost")
    assert disk.read_file("/b/new") == b"y" * 3000
    disk.crash(mode="all_lost")
    disk.wipe()
    assert disk.scan_dir("/") == []
    with pytest.raises(FileNotFoundError):
        disk.wipe("/a")


# --- determinism

TRACE = """
import random, sys
from logstore.testing import FaultyStorage
rng = random.Random(int(sys.argv[1]))
disk = FaultyStorage()
for round in range(30):
    for step in range(20):
        name = rng.choice("abcdef")
        try:
            match rng.randrange(6):
                case 0: disk.write_file(f"/{name}", rng.randbytes(rng.randrange(2000)))
                case 1: disk.rename(f"/{name}", f"/{rng.choice('abcdef')}")
                case 2: disk.remove(f"/{name}")
                case 3: disk.sync_dir("/")
                case 4: disk.open(f"/{name}").write_at(rng.randrange(99), rng.randbytes(1500))
                case 5: disk.open(f"/{name}").truncate(rng.randrange(2000))
        except OSError:
            pass
    disk.crash(rng)
import zlib
print([(e.name, e.size, zlib.crc32(disk.read_file("/" + e.name))) for e in disk.scan_dir("/")])
print(sorted(disk.struck.items()), disk.operations, rng.random())
"""


@pytest.mark.slow
def test_a_seed_repeats_a_run_whatever_the_hash_seed() -> None:
    outputs = []
    for seed, hash_seed in (("7", "0"), ("7", "1"), ("7", "2"), ("8", "0")):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-c", TRACE, seed]
        outputs.append(subprocess.check_output(command, text=True, env=environment))
    assert outputs[0] == outputs[1] == outputs[2] != outputs[3]
    for kind in ("lost_name", "lost_sector", "lost_size", "lost_truncation", "torn_sector"):
        assert kind in outputs[0]


def test_syncing_costs_what_changed_and_not_the_file() -> None:
    """Thousands of runs a minute: a sync after a small write to 20 MB must not copy 20 MB."""
    disk = disk_with("/f", bytes(20 << 20))
    file = disk.open("/f")
    tracemalloc.start()
    try:
        for index in range(20):
            file.write_at(index * 1_000_000, b"x" * 100)
            file.sync()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 << 20


# --- clock


def test_manual_clock_keeps_wall_and_elapsed_time_apart() -> None:
    clock = ManualClock(wall_ms=1000, monotonic_ns=5)
    clock.advance(2)
    assert (clock.wall_ms(), clock.monotonic_ns()) == (1002, 2_000_005)
    clock.set_wall_ms(7)
    assert (clock.wall_ms(), clock.monotonic_ns()) == (7, 2_000_005)
    with pytest.raises(ValueError):
        clock.advance(-1)


def test_system_clock() -> None:
    from logstore.common.clock import SystemClock

    clock = SystemClock()
    first = clock.monotonic_ns()
    assert clock.monotonic_ns() >= first
    assert clock.wall_ms() > 1_700_000_000_000
