"""The wall clock of a process, moved while it runs: a library that comes before C's.

A time namespace has no CLOCK_REALTIME, so this is the way without a machine of one's own. Only the
wall clock moves, as on a machine whose clock is set: the monotonic one goes on.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path

VARIABLE = "LOGSTORE_TEST_CLOCK"
_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset_ns;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void open_offset(void) {
    real = dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("LOGSTORE_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *offset_ns, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) offset_ns = page;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (failed || !offset_ns || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return failed;
    int64_t ns = now->tv_nsec + now->tv_sec * INT64_C(1000000000) + *offset_ns;
    now->tv_sec = ns / 1000000000;
    now->tv_nsec = ns % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (into) *into = found.tv_sec;
    return found.tv_sec;
}
"""


class MovedClock:
    """The clock of the processes that are started with ``environment``.

    Args:
        library: made by ``build``.
        file: keeps the distance from the real time, for as long as any of them runs.
    """

    def __init__(self, library: Path, file: Path) -> None:
        file.write_bytes(bytes(8))
        self.environment = {"LD_PRELOAD": str(library), VARIABLE: str(file)}
        with file.open("r+b") as opened:
            self._page = mmap.mmap(opened.fileno(), 8)

    def set(self, offset_s: float) -> None:
        """How far the clock is ahead of the real one from now on."""
        struct.pack_into("q", self._page, 0, int(offset_s * 1e9))

    def close(self) -> None:
        self._page.close()


def build(directory: Path) -> Path | None:
    """The library, or None where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    source, library = directory / "clock.c", directory / "clock.so"
    source.write_text(_SOURCE)
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, env={**os.environ, "LC_ALL": "C"})
    return library
