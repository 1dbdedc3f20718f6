"""An interrupt of a client's thread does not end the work of a broker in its middle."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from replication import Cluster
from tests.interrupts.points import Interruption, interrupted, places
from tests.interrupts.searching import quiet

RUNS = 40


@pytest.mark.slow
def test_produce_interrupted_anywhere(tmp_path: Path) -> None:
    with quiet(), Cluster(1, tmp_path) as cluster:
        (partition,) = cluster.create_topic("orders", 1, 1)
        count = places(lambda: cluster.produce("orders", b"first"))
        acknowledged = {b"first"}
        for run in range(RUNS):
            value = b"%d" % run
            produce = partial(cluster.produce, "orders", value)
            raised, _ = interrupted(produce, count * run // RUNS, Interruption)
            if not raised:
                acknowledged.add(value)
            again = b"%d again" % run
            cluster.produce("orders", again)
            acknowledged.add(again)
        seen = [record.value for record in cluster.read_all("orders")[0]]
        assert cluster.replica(partition, 0).high_watermark == len(seen)
    assert acknowledged <= set(seen)
    assert len(seen) == len(set(seen))
