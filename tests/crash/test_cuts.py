"""Power cuts at every change in the life of a log manager; ``python -m tests.histories cuts``."""

from __future__ import annotations

from functools import partial

import pytest

from logstore.log import PartitionLog
from tests.crash.cuts import SCRIPTS
from tests.crash.disk import CONFIG, DIRECTORY, batches_of, disk_with
from tests.crash.model import as_client
from tests.histories.history import hold


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(SCRIPTS)))
def test_no_cut_takes_or_brings_back_anything(at: int) -> None:
    """A script, and how often it was cut."""
    assert hold("cuts", [3 * at])["cuts"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 4, 5, 8, 11])
def test_no_cut_in_a_random_life(seed: int) -> None:
    done = hold("cuts", [seed])
    assert done["cuts"] > 150
    assert done["starts cut"]


def test_a_log_alone_that_is_cut_below_its_start_keeps_what_was_deleted_deleted() -> None:
    """The batch at 0 stays in the file."""
    open_log = partial(PartitionLog.open, DIRECTORY, CONFIG)
    disk = disk_with({})
    log = open_log(storage=disk)
    for batch in batches_of(3):
        log.append_as_leader(as_client(batch), 0)
    log.delete_records(5)
    log.close()
    log = open_log(storage=disk)
    log.truncate_to(4)
    disk.crash(mode="all_lost")
    log = open_log(storage=disk)
    assert (log.log_start_offset, log.log_end_offset) == (3, 3)
    log.close()
