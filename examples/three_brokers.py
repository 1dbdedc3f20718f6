"""Three brokers in one process. The leader is killed; no acknowledged record is lost.

    python examples/three_brokers.py DIRECTORY

The directory then holds three log directories, which Kafka's own tools read.
"""

from __future__ import annotations

import sys
from pathlib import Path

from replication import Cluster


def main(directory: Path) -> None:
    with Cluster(3, directory) as cluster:
        cluster.create_topic("orders", config={"min.insync.replicas": 2})
        producer = cluster.producer(idempotent=True)  # acks=all; never twice, always in order
        orders = producer.send("orders", b"two of these", key=b"customer-7").tp

        killed = cluster.leader(orders)
        assert killed is not None
        cluster.crash(killed)  # as kill -9 would
        producer.send("orders", b"one of those", key=b"customer-9")  # waits for the next leader
        print(f"broker {killed} was killed, broker {cluster.leader(orders)} leads")

        cluster.start(killed)
        cluster.wait_for_isr(orders, [0, 1, 2])
        print("in sync again:", *cluster.isr(orders))
        for tp, record in cluster.consumer(orders).read_to_end():
            print(tp, record.offset, record.key, record.value)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
