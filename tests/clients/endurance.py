"""Two client libraries under load while leaders crash, checked at the end by Spark.

Each library has an idempotent and a transactional producer on a cluster of three brokers; every
second transaction aborts. Every few seconds the leader of some partition crashes under them, and
comes back. At the end Spark reads the segments of all three brokers: every acknowledged and every
committed record is there exactly once, no aborted one is, and replicas are equal.

``python -m tests.clients.endurance --minutes 10``
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkpoints.types import TopicPartition
from replication.server.serving import ServedCluster, serve
from tests.clients.matrix.clients import CLIENTS, DriverFailed, DriverProcess, answered, start
from tests.clients.matrix.test_leader_killed import BROKERS, SETTINGS
from tests.clients.matrix.test_matrix import PARTITIONS, produce
from tests.cluster.load import check_replicas
from tests.support.until import patience

ONCE, TRANSACTED = "once", "transacted"
TOPICS = (ONCE, TRANSACTED)
LIBRARIES = ("confluent-kafka 2.16.1", "Java 4.3.1")
TRANSACTION_SIZE = 20
PAUSE_MS = 4
AWAY_S = 1.5
STUCK_S = 60  # without an answer: longer than any time-out of a client


@dataclass
class Lane:
    """One producer of one library, started again whenever its library gives up.

    Each life has a prefix of its own, and a transactional producer the same transactional id, so
    that its next life fences the last one.
    """

    name: str
    library: str
    topic: str
    lives: int = 0
    driver: DriverProcess | None = None
    answers: list[dict[str, Any]] = field(default_factory=list)
    moved: tuple[int, float] = (0, 0.0)
    """How many answers there were at the last look that found more, and when that was."""

    def keep_alive(self, bootstrap: str, seconds: float) -> None:
        """Start it, if it does not run, or has been stuck."""
        now = time.monotonic()
        if self.progress > self.moved[0]:
            self.moved = self.progress, now
        if self.driver is not None:
            is_stuck = now > self.moved[1] + STUCK_S
            if self.driver.process.poll() is None and not is_stuck:
                return
            print(f"{self.name}: {'is stuck' if is_stuck else 'gave up'}", flush=True)
            self._collect()
        self.moved = self.progress, now
        self.lives += 1
        step = {**produce(self.topic, f"{self.name}{self.lives}-", pause_ms=PAUSE_MS)}
        del step["count"]
        step["timeout_s"] = int(seconds)
        if self.topic == TRANSACTED:
            step |= {"transactional_id": self.name, "transaction_size": TRANSACTION_SIZE}
        else:
            step["idempotent"] = True
        (client,) = (client for client in CLIENTS if client.name == self.library)
        self.driver = start(client, bootstrap, step)

    def stop(self) -> None:
        """End it in order."""
        if self.driver is not None:
            self.driver.stop()
            try:
                self.driver.finish()
            except DriverFailed as error:
                print(f"{self.name}: {str(error)[-600:]}", flush=True)
            self._collect()

    def _collect(self) -> None:
        assert self.driver is not None
        self.driver.close()
        for error in answered(self.driver.answers, "error"):
            print(f"{self.name}: {error}"[:300], flush=True)
        self.answers += self.driver.answers
        self.driver = None

    @property
    def progress(self) -> int:
        """How many answers there are."""
        return len(self.answers) + (0 if self.driver is None else len(self.driver.answers))


def _crash(cluster: ServedCluster, rng: random.Random) -> None:
    tp = TopicPartition(rng.choice(TOPICS), rng.randrange(PARTITIONS))
    leader = cluster.wait_for_leader(tp)
    cluster.crash(leader)
    time.sleep(AWAY_S)
    cluster.start(leader)
    for tp in _partitions():
        cluster.wait_for_isr(tp, set(range(BROKERS)), timeout_s=60)


def _partitions() -> Iterator[TopicPartition]:
    return itertools.starmap(TopicPartition, itertools.product(TOPICS, range(PARTITIONS)))


def run(directory: Path, minutes: float, every_s: float, seed: int) -> dict[str, Any]:
    """Drive the cluster, and return what must hold of its files.

    Raises:
        Failure, TimeoutError: the replicas are not equal in the end.
    """
    rng = random.Random(seed)
    lanes = [
        Lane(f"{'ab'[number]}{topic}", library, topic)
        for number, library in enumerate(LIBRARIES)
        for topic in TOPICS
    ]
    crashes = 0
    with serve(directory, brokers=BROKERS, config=SETTINGS) as cluster:
        for topic in TOPICS:
            cluster.create_topic(topic, PARTITIONS, BROKERS)
        end = time.monotonic() + minutes * 60
        told = time.monotonic()
        while time.monotonic() < end:
            for lane in lanes:
                lane.keep_alive(cluster.bootstrap_servers, minutes * 60 + patience())
            next_at = time.monotonic() + every_s
            _crash(cluster, rng)
            crashes += 1
            if time.monotonic() > told + 60:
                told = time.monotonic()
                counts = ", ".join(f"{lane.name} {lane.progress}" for lane in lanes)
                print(f"{crashes} crashes; answers: {counts}", flush=True)
            time.sleep(max(0.0, next_at - time.monotonic()))
        for lane in lanes:
            lane.stop()
        check_replicas(cluster, _partitions())
        paths = [path for broker in range(BROKERS) for path in cluster.log_dirs(broker)]
    answers = [answer for lane in lanes for answer in lane.answers]
    return {
        "paths": paths,
        "crashes": crashes,
        "lives": {lane.name: lane.lives for lane in lanes},
        "acked": list(answered(answers, "acked")),
        "committed": list(itertools.chain(*answered(answers, "committed"))),
        "aborted": list(itertools.chain(*answered(answers, "aborted"))),
        "unknown": list(answered(answers, "unknown")),
    }


def check(expected: dict[str, Any]) -> list[str]:
    """Read the segments of all brokers with Spark; return what is wrong with them."""
    from logstore.spark import session, verify_on_spark

    conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"}
    spark = session("local[2]", app_name="endurance", conf=conf)
    options = {"subscribe": ",".join(TOPICS), "isolation": "read_committed", "replicas": "all"}
    columns = "broker,topic,partition,offset,value"
    reader = spark.read.format("logstore").options(columns=columns, **options)
    rows = reader.load(expected["paths"]).selectExpr("broker", "topic", "string(value)").collect()
    wrong = []
    for broker in sorted({row[0] for row in rows}):
        found = Counter(value for name, topic, value in rows if name == broker)
        lost = {*expected["acked"], *expected["committed"]} - found.keys()
        twice = [value for value, count in found.items() if count > 1]
        torn = [
            values
            for values in expected["unknown"]
            if len(found.keys() & set(values)) not in (0, len(values))
        ]
        for what, values in (
            ("lost", lost),
            ("twice", twice),
            ("aborted and there", found.keys() & set(expected["aborted"])),
            ("half a transaction", torn),
        ):
            if values:
                wrong.append(f"broker {broker}: {len(values)} {what}: {sorted(values)[:5]}")
        print(f"broker {broker}: {len(found)} records", flush=True)
    report = verify_on_spark(spark, *expected["paths"]).report
    wrong += [str(each) for each in report.findings if each.severity == "error"]
    spark.stop()
    return wrong


def main() -> int:
    """Return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--every", type=float, default=5, help="seconds from crash to crash")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="logstore-endurance-"))
    expected = run(directory / "data", options.minutes, options.every, options.seed)
    (directory / "expected.json").write_text(json.dumps(expected))
    print(
        f"{expected['crashes']} crashes; {len(expected['acked'])} acknowledged, "
        f"{len(expected['committed'])} committed, {len(expected['aborted'])} aborted, "
        f"{len(expected['unknown'])} transactions of unknown end; lives {expected['lives']}",
        flush=True,
    )
    wrong = check(expected)
    print("\n".join(wrong) or "all is well", flush=True)
    print(directory)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
