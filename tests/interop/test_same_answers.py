"""A real Kafka and a broker of ours answer random sequences alike: one of each kind. The long
search is ``python -m tests.differential``."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker import KafkaBroker

from replication.server.serving import serve
from tests.differential.broker import Broker
from tests.differential.comparison import OUR_SETTINGS, SETTINGS
from tests.differential.search import KINDS, Search

pytestmark = [pytest.mark.slow, pytest.mark.essential]


def test_answers(kafka: str, tmp_path: Path) -> None:
    node = KafkaBroker(tmp_path / "kafka", overrides=SETTINGS)
    with node, serve(tmp_path / "ours", config=OUR_SETTINGS) as cluster:
        theirs, ours = Broker(node.bootstrap), Broker(cluster.bootstrap_servers)
        for each in (theirs, ours):
            each.prepare()
        search = Search(theirs, ours)
        told = [text for seed, kind in enumerate(KINDS) for text in search.run(kind, seed)[1]]
        for each in (theirs, ours):
            each.close()
    assert not search.seen, "\n".join(told)
    assert search.asked.total() > 100
