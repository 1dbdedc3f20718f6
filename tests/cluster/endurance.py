"""A cluster under load, and one disturbance after the other.

Three brokers, several idempotent producers with acks=all on several partitions, a consumer beside
them. Meanwhile brokers and controllers crash, stop, are cut off, lose their sessions, and the
coordinator is away. At the end all brokers are back and in sync, every acknowledged value is there
once and in order, what a consumer saw is still where it saw it, and all replicas are equal.

The seed chooses the disturbances; threads and a real server decide what meets what.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple, Protocol

from logstore.common.config import LogConfig
from replication.common.config import ReplicationConfig
from replication.embedded.cluster import Cluster
from tests.cluster.load import Load, check_prefix, check_replicas, check_values, values_of
from tests.support.until import patience

BROKERS = 3
PARTITIONS = 4
SENDERS = 4
TOPIC = "endurance"
SESSION_TIMEOUT_MS = 1500
FAST = ReplicationConfig(
    replica_lag_time_max_ms=1000,
    replica_fetch_wait_max_ms=100,
    replica_fetch_backoff_ms=50,
    controlled_shutdown_retry_backoff_ms=50,
    high_watermark_checkpoint_interval_ms=500,
)
SMALL_SEGMENTS = LogConfig(segment_bytes=100_000, min_insync_replicas=2)


class Backend(Protocol):
    """A coordinator that can be disturbed."""

    @property
    def url(self) -> str: ...

    def expire(self, cluster: Cluster, broker_id: int) -> None:
        """End a broker's session as its timeout does."""
        ...

    def away(self, cluster: Cluster) -> AbstractContextManager[None]:
        """No coordinator meanwhile."""
        ...


class Embedded:
    url = "embedded"

    def expire(self, cluster: Cluster, broker_id: int) -> None:
        cluster.coordinator.expire(cluster.session(broker_id))

    @contextmanager
    def away(self, cluster: Cluster) -> Iterator[None]:
        sessions = [cluster.session(broker_id) for broker_id in cluster.live_brokers]
        for session in sessions:
            session.suspend()
        yield
        for session in sessions:
            session.resume()


class ZooKeeper:
    """A real server, which ``away`` kills and starts again."""

    def __init__(self, server: object) -> None:
        self._server = server
        self.url = f"zookeeper://{server.hosts}"

    def expire(self, cluster: Cluster, broker_id: int) -> None:
        session = cluster.session(broker_id)
        self._server.expire(session.session_id, bytes(session._client._session_passwd))

    @contextmanager
    def away(self, cluster: Cluster) -> Iterator[None]:
        self._server.kill()
        yield
        self._server.start()


class Disturber:
    """Each method breaks something and mends it again; ``rng`` chooses what and for how long."""

    def __init__(self, cluster: Cluster, backend: Backend, rng: random.Random) -> None:
        self._cluster = cluster
        self._backend = backend
        self._rng = rng
        self._topic = cluster.client.partitions(TOPIC)

    def _rest(self, longest_s: float = 2.0) -> None:
        """Time for the others to notice; how much of it does not matter to what holds."""
        threading.Event().wait(self._rng.uniform(0.0, longest_s))

    def _leader(self) -> int:
        return self._cluster.wait_for_leader(self._rng.choice(self._topic))

    def _controller(self) -> int:
        cluster = self._cluster
        cluster.wait_until(lambda: cluster.controller_id is not None, "a controller")
        found = cluster.controller_id
        return self._leader() if found is None else found

    def _crash(self, broker_id: int) -> None:
        self._cluster.crash(broker_id, notice=self._rng.random() < 0.5)

    def crash_leader(self) -> None:
        self._crash(self._leader())
        self._rest()

    def crash_controller(self) -> None:
        self._crash(self._controller())
        self._rest()

    def crash_two(self) -> None:
        for broker_id in self._rng.sample(self._cluster.broker_ids, 2):
            self._crash(broker_id)
            self._rest(0.5)

    def crash_all(self) -> None:
        for broker_id in self._rng.sample(self._cluster.broker_ids, BROKERS):
            self._crash(broker_id)
            self._rest(0.2)

    def stop_broker(self) -> None:
        self._cluster.stop(self._rng.choice(self._cluster.broker_ids))
        self._rest(1.0)

    def cut_off_leader(self) -> None:
        self._cluster.cut_off(self._leader())
        self._rest(3.0)

    def expire_leader(self) -> None:
        self._backend.expire(self._cluster, self._leader())
        self._rest(0.5)

    def expire_controller(self) -> None:
        self._backend.expire(self._cluster, self._controller())
        self._rest(0.5)

    def coordinator_away(self) -> None:
        with self._backend.away(self._cluster):
            self._rest(3.0)

    def coordinator_away_and_crash(self) -> None:
        """Nobody can be told, and nobody can take over before it is back."""
        with self._backend.away(self._cluster):
            self._rest(0.5)
            self._cluster.crash(self._leader(), notice=False)
            self._rest(1.0)

    def mend(self) -> None:
        cluster = self._cluster
        cluster.heal()
        for broker_id in self._rng.sample(cluster.broker_ids, BROKERS):
            cluster.start(broker_id, wait=False)
        cluster.wait_until(
            lambda: len(cluster.live_brokers) == BROKERS, "all brokers are back", patience()
        )


DISTURBANCES = [name for name in vars(Disturber) if not name.startswith("_") and name != "mend"]


class Result(NamedTuple):
    disturbances: Counter[str]
    acknowledged: int
    found: int
    leader_epochs: int

    def __str__(self) -> str:
        each = ", ".join(f"{count} {name}" for name, count in sorted(self.disturbances.items()))
        return (
            f"{self.disturbances.total()} disturbances ({each}), {self.leader_epochs} leader "
            f"epochs, {self.acknowledged} values acknowledged, {self.found} found: all there once "
            "and in order, all replicas equal"
        )


def run(backend: Backend, directory: Path, seed: int, names: Iterable[str]) -> Result:
    """One disturbance after the other.

    Raises:
        Failure, TimeoutError: what was promised did not hold, or not in time.
    """
    rng = random.Random(seed)
    disturbances: Counter[str] = Counter()
    with Cluster(
        BROKERS,
        directory,
        coordinator=backend.url,
        config=FAST,
        log_config=SMALL_SEGMENTS,
        session_timeout_ms=SESSION_TIMEOUT_MS,
    ) as cluster:
        tps = cluster.create_topic(TOPIC, PARTITIONS, config={"min.insync.replicas": 2})
        load = Load(cluster, TOPIC, SENDERS)
        disturber = Disturber(cluster, backend, rng)
        for name in names:
            disturbances[name] += 1
            getattr(disturber, name)()
            disturber.mend()
            load.wait_for_progress()
            if rng.random() < 0.3:  # else the next one meets replicas that still catch up
                for tp in tps:
                    cluster.wait_for_isr(tp, range(BROKERS), patience())
        load.stop()
        check_replicas(cluster, tps)
        values = values_of(cluster, TOPIC)
        found = check_values(values, load.counts)
        check_prefix(load.reader.seen, values)
        epochs = sum(cluster.replica(tp, 0).leader_epoch for tp in tps)
    return Result(disturbances, sum(c.acked for c in load.counts.values()), found, epochs)


def for_minutes(minutes: float, seed: int) -> Iterator[str]:
    """All disturbances in an order of the seed, again and again."""
    rng, began = random.Random(seed), time.monotonic()
    while True:
        for name in rng.sample(DISTURBANCES, len(DISTURBANCES)):
            if (spent := time.monotonic() - began) > minutes * 60:
                return
            print(f"{spent:6.1f} s  {name}", file=sys.stderr, flush=True)
            yield name


def zookeeper_server(directory: Path) -> AbstractContextManager[object]:
    from tests.zookeeper.server import ZooKeeperServer

    return ZooKeeperServer(directory)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.endurance", description=__doc__)
    parser.add_argument("--coordinator", choices=("embedded", "zookeeper"), default="embedded")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    faulthandler.dump_traceback_later(args.minutes * 60 + 300, exit=True)
    directory = Path(tempfile.mkdtemp(prefix="endurance-"))
    logging.basicConfig(
        filename=directory / "log", format="%(asctime)s %(threadName)s %(levelname)s %(message)s"
    )
    is_zookeeper = args.coordinator == "zookeeper"
    server = zookeeper_server(directory / "zookeeper") if is_zookeeper else nullcontext()
    with server as started:
        backend: Backend = ZooKeeper(started) if is_zookeeper else Embedded()
        try:
            names = for_minutes(args.minutes, args.seed)
            print(run(backend, directory / "cluster", args.seed, names))
        except BaseException:
            print(f"failed; seed {args.seed}, files in {directory}", file=sys.stderr)
            raise
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
