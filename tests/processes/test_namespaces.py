"""Ways that the kernel cuts: packets vanish in one direction, or a machine falls silent (X-80)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.processes.namespaces import NamespacedNodes, unavailable
from tests.processes.nodes import SESSION_MS
from tests.processes.records import Records
from tests.support.until import until

pytestmark = pytest.mark.slow
LAG_S = 3  # one and a half of replica.lag.time.max.ms


@pytest.fixture(scope="module")
def spaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespacedNodes]:
    if reason := unavailable():
        pytest.skip(reason)  # also in a build: the relay's tests say the same of the brokers
    with NamespacedNodes(tmp_path_factory.mktemp("spaces")) as nodes:
        yield nodes


def test_a_machine_falls_silent(spaces: NamespacedNodes) -> None:
    """Its connections end without a word: another leads after its session, and it comes back."""
    records = Records(spaces)
    records.append()
    silent = spaces.leader(records.tps[0])
    with spaces.blackhole(silent, None, *(b for b in spaces.brokers if b != silent)):
        began = time.monotonic()
        records.append()
        assert time.monotonic() - began < SESSION_MS / 1000 + 3
        until(lambda: silent not in spaces.leaders().values())
    spaces.wait_until_whole()
    records.append()
    records.check()


def test_answers_to_a_follower_vanish(spaces: NamespacedNodes) -> None:
    """One direction: the leader hears fetches, and the follower hears nothing. It leaves the ISR,
    writes go on, and it comes back on new connections."""
    records = Records(spaces, 1)
    (tp,) = records.tps
    leader = spaces.leader(tp)
    follower = next(b for b in spaces.brokers if b not in (leader, spaces.controller))
    with spaces.blackhole(leader, follower):
        began = time.monotonic()
        records.append()
        assert time.monotonic() - began < LAG_S + SESSION_MS / 1000
        until(lambda: follower not in spaces.described()[tp].isrs)
    spaces.wait_until_whole()
    records.append()
    records.check()
