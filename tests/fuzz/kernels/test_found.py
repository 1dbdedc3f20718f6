"""What the kernel fuzzers found, one by one (docs/fuzzing.md)."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from array import array
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("logstore.kernels._scan")

from logstore.kernels import LogSnapshot, _append, _codec, _scan, _verify, _window
from logstore.storage.local import LocalStorage
from tests.fuzz.kernels.inputs import LONG, exact, record, table
from tests.fuzz.kernels.writing import File, LyingBytes, Map
from tests.reference import appends as _append_reference
from tests.reference import records as reference
from tests.support.builders import batch

STATES = pytest.mark.parametrize(
    "state_type",
    [_append.SegmentState, _append_reference.SegmentState],
    ids=["native", "reference"],
)
ONE = batch()


def attached(state: Any, file: Any) -> tuple[Map, Map]:
    maps = Map(80), Map(120)
    state.attach(file, *maps)
    state.segment_bytes = state.max_segment_ms = 1 << 40
    return maps


class ChangesWhatIsWritten(File):
    """Has the caller's bytes changed right after they were written."""

    def __init__(self, data: bytearray) -> None:
        super().__init__()
        self.data = data

    def write_at(self, position: int, data: Any) -> None:
        super().write_at(position, data)
        self.data[8:12] = b"\x7f\xff\xff\xff"


@pytest.mark.parametrize("descriptor", [True, False], ids=["descriptor", "file"])
def test_lengths_that_change_before_the_write_are_refused(tmp_path: Path, descriptor: bool) -> None:
    data, state = bytearray(ONE * 3), _append.SegmentState(0)
    with open(tmp_path / "log", "w+b", buffering=0) as disk:
        offsets, _ = attached(state, File(disk.fileno() if descriptor else -1))
        state.index_interval_bytes = -1

        def change(_: int) -> None:
            data[len(ONE) + 8 : len(ONE) + 12] = b"\x80\0\0\0"

        offsets.reserve = change  # type: ignore[method-assign]
        with pytest.raises(ValueError, match="changed while they were appended"):
            state.append(data, len(data), 0, 0)
        assert (state.size, state.next_offset, state.offset_entries) == (0, 0, 0)
        offsets.reserve = lambda _: None  # type: ignore[method-assign]
        assert state.append(ONE * 3, 3 * len(ONE), 0, 0) == 2
        state.detach()


def test_lengths_that_change_behind_the_write_count_for_nothing() -> None:
    data, state = bytearray(ONE * 3), _append.SegmentState(0)
    attached(state, ChangesWhatIsWritten(data))
    with pytest.raises(ValueError, match="changed while they were appended"):
        state.append(data, len(data), 0, 0)
    assert (state.size, state.next_offset, state.max_timestamp) == (0, 0, -1)
    state.detach()


@STATES
def test_an_offset_in_the_middle_must_fit_the_segment_as_well(state_type: Any) -> None:
    state = state_type(5)
    attached(state, File())
    middle = batch(5) + batch(2**40) + batch(6)
    with pytest.raises(ValueError, match="does not fit the segment"):
        state.append(middle, len(middle), -1, 0)
    assert state.size == 0
    state.detach()


@STATES
def test_no_append_takes_the_last_offset_of_all(state_type: Any) -> None:
    state = state_type(LONG)
    attached(state, File())
    state.rolling_timestamp = 0
    with pytest.raises(ValueError, match="does not fit the segment"):
        state.append(ONE, len(ONE), LONG, 0)
    assert state.must_roll(1, LONG, 0, 0)
    assert isinstance(
        state.snapshot((), None, 0, -1, -1, 0), LogSnapshot | _append_reference.LogSnapshot
    )
    state.detach()


def test_no_leader_epoch_is_cut_to_32_bits() -> None:
    state = _append.SegmentState(0)
    attached(state, File())
    with pytest.raises(OverflowError):
        state.append(ONE, len(ONE), 0, 2**32 + 1)
    state.detach()


def test_index_entries_stay_inside_the_maps() -> None:
    state = _append.SegmentState(0)
    attached(state, File())
    state.max_timestamp, state.time_entries, state.time_entries_max = 5, -3, 1 << 40
    assert not state.add_time_entry()
    state.time_entries = 10  # where the map ends
    assert not state.add_time_entry()
    state.detach()


def test_a_recovery_reads_each_length_once() -> None:
    """Another thread, as another process in a mapped file, makes lengths long and short again."""
    one, count = batch(), 10_000
    view = exact(b"".join(n.to_bytes(8, "big") + one[8:] for n in range(count)))
    place, stop = (count - 1000) * len(one) + 8, threading.Event()

    def change() -> None:
        while not stop.is_set():
            view[place] = 0x7F
            view[place] = 0

    thread, before = threading.Thread(target=change, daemon=True), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        for _ in range(5):
            scan = _scan.RecoveryScan(0, 4096)
            assert scan.feed(view, 0, True) % len(one) == 0
            assert scan.batch_count in (count - 1000, count)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)


@pytest.mark.parametrize("kernels", [_scan, reference], ids=["native", "reference"])
def test_a_window_must_end_before_the_last_position(kernels: Any) -> None:
    with pytest.raises(ValueError, match="leaves no room"):
        kernels.RecoveryScan(0, 0).feed(ONE, LONG - 5, True)


def test_a_subclass_does_not_say_how_long_it_is() -> None:
    encoded = _codec.encode_records([(LyingBytes(b"key"), None)])
    assert bytes(encoded.buffer[61:]) == bytes(
        reference.encode_records([(b"key", None)]).buffer[61:]
    )


def test_no_validity_is_needed_for_no_rows() -> None:
    nothing = exact(b"")
    with pytest.raises(ValueError, match="validity"):
        _codec.encode_columns(LONG, LONG, exact(bytes(8)), nothing, nothing, None, None, None)


@pytest.mark.parametrize("kernels", [_codec, reference], ids=["native", "reference"])
def test_an_empty_header_name_needs_no_data(kernels: Any) -> None:
    one = array("i", [0, 1])
    names = array("i", [0, 0])
    headers = (one, None, 1, names, None, None, names, None, None)
    nothing = (None, None, None)
    encoded = kernels.encode_columns(0, 1, *nothing, *nothing, headers=headers)
    assert bytes(encoded.buffer[61:]) == b"\x10\0\0\0\x01\x01\x02\0\0"


@pytest.mark.parametrize("kernels", [_codec, reference], ids=["native", "reference"])
def test_a_limit_below_zero_takes_no_record(kernels: Any) -> None:
    builder = kernels.ColumnBuilder()
    payload = b"".join(record(random.Random(n), n, 0) for n in range(40))
    builder.add_payload(payload, 2**62, 0, 40, None, kernels.ReadBounds(0, -(2**63)))
    assert builder.rows == 0


def test_tables_are_aligned_and_looked_at_before_room_is_made() -> None:
    cells = table(1)
    with pytest.raises(ValueError, match="rows of a table with room for 1,"):
        _verify.irregular_batches(ONE, cells, 1 << 60)
    shifted = exact(b"\1" + cells.tobytes())[1:]
    with pytest.raises(ValueError, match="aligned"):
        _verify.irregular_batches(ONE, shifted, 1)
    with pytest.raises(ValueError, match="aligned"):
        _verify.fold_batches(ONE, cells, shifted[:8], 0, 1, 1, 1)
    with pytest.raises(ValueError, match="rows of a table"):
        _verify.fits_in_section(b"", cells, LONG)


@pytest.mark.parametrize("size", [LONG, LONG - 4095])
def test_no_window_is_larger_than_there_are_positions(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(ONE)
    descriptor = os.open(tmp_path / "file", os.O_RDWR)
    try:
        with pytest.raises((MemoryError, ValueError)):
            _window.ReadWindow(descriptor, 0, size)
        with pytest.raises((OSError, ValueError)):
            _window.MappedWindow(descriptor, 4095, size)
    finally:
        os.close(descriptor)


LONG_NAMES = """
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Once LONG_NAME is set: one entry with a name of so many bytes, as outside POSIX they occur. */
struct dirent64 *readdir64(DIR *directory)
{
    static union { struct dirent64 entry; char room[4096]; } made;
    static int done;
    const char *size = getenv("LONG_NAME");
    if (size == NULL)
        return ((struct dirent64 * (*)(DIR *)) dlsym(RTLD_NEXT, "readdir64"))(directory);
    if (done++)
        return NULL;
    memset(made.entry.d_name, 'x', (size_t)atoi(size));
    return &made.entry;
}

int fstatat64(int directory, const char *name, struct stat64 *status, int flags)
{
    if (getenv("LONG_NAME") == NULL)
        return stat64(name, status);
    memset(status, 0, sizeof *status);
    return 0;
}
"""

LISTED = """
import errno, os, sys
from logstore.storage.local import LocalStorage
os.environ["LONG_NAME"] = sys.argv[2]
try:
    print([len(entry.name) for entry in LocalStorage().scan_dir(sys.argv[1])])
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_names_are_longer_than_a_dirent_says(tmp_path: Path) -> None:
    (tmp_path / "names.c").write_text(LONG_NAMES)
    library = tmp_path / "names.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "names.c"], check=True)
    preloaded = f"{os.environ.get('LD_PRELOAD', '')} {library}".strip()
    for size, told in (("765", "[765]"), ("2000", "ENAMETOOLONG")):
        done = subprocess.run(
            [sys.executable, "-c", LISTED, tmp_path, size],
            env=os.environ | {"LD_PRELOAD": preloaded},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == told


@pytest.mark.parametrize("seconds", [2**60, -(2**60)])
def test_a_time_out_of_range_is_the_last_one(seconds: int) -> None:
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # takes any time as it is given
    with tempfile.TemporaryDirectory(dir=memory) as path:
        file = Path(path, "file")
        file.touch()
        os.utime(file, (0, seconds))
        if abs(file.stat().st_mtime) < 2**59:
            pytest.skip("the file system brings times into its range")
        (entry,) = LocalStorage().scan_dir(path)
        assert entry.mtime_ms // 2**62 == (1 if seconds > 0 else -2)
