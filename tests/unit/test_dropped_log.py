"""A log dropped without being closed, in a reference cycle, is let go of without a crash."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

DROP = """
import gc, sys, warnings
from logstore import LogConfig, PartitionLog
from logstore.testing import FaultyStorage
warnings.simplefilter("ignore")
storage = FaultyStorage() if sys.argv[1] == "faulty" else None
for number in range(60):
    log = PartitionLog.open(
        f"{sys.argv[2]}/t-{number}", LogConfig(segment_index_bytes=4096), storage=storage
    )
    log.append([(b"k", b"v")] * 10)
    log.itself = log
    del log
    if number % 7 == 0:
        gc.collect()
gc.collect()
print("alive")
"""


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["local", "faulty"])
def test_the_collector_takes_a_log_in_a_cycle(storage: str, tmp_path: Path) -> None:
    """Views of mapped indexes must outlive the buffers that the native state took of them."""
    gc.collect()
    done = subprocess.run(
        [sys.executable, "-c", DROP, storage, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "alive"), done.stderr
    assert "BufferError" not in done.stderr
