"""What is dropped without being closed, in a reference cycle, is let go of without a crash.

The native state of a segment holds buffers of its mapped indexes. If the collector knew the state,
it could clear a map's view before the state gives its buffer of it back, and the interpreter would
die: it clears the oldest object first. So here the maps are older than all that leads to them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DROP = """
import gc, sys, warnings
from logstore.kernels import SegmentState
from logstore.storage import open_storage
from logstore.testing import FaultyStorage

warnings.simplefilter("ignore")  # files that nobody closed
storage = FaultyStorage() if sys.argv[1] == "faulty" else open_storage("local")
storage.make_dir(sys.argv[2])
gc.disable()
gc.collect()
for number in range(3):
    log, *indexes = [
        storage.open(f"{sys.argv[2]}/{number}.{name}", create=True)
        for name in ("log", "index", "timeindex")
    ]
    maps = [index.map(960) for index in indexes]
    state = SegmentState(0)
    state.attach(log, *maps)
    cycle = [state]
    cycle.append(cycle)
    del log, indexes, maps, state, cycle
    found = gc.collect()
    assert found, "nothing was collected"
print("alive")
"""


@pytest.mark.parametrize("storage", ["local", "faulty"])
def test_the_collector_takes_a_segment_in_a_cycle(storage: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DROP, storage, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "alive"), done.stderr
    assert "BufferError" not in done.stderr
