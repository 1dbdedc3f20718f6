"""A service, and a test of it in which the leader of its topic dies.

    pytest examples/test_shop.py

The fixture ``logstore_cluster`` is three brokers in this process. pytest knows it as soon as the
package is installed; it needs no JVM, no container and no port.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replication import Cluster


class Shop:
    """Takes orders, each exactly once, and tells what a customer has ordered."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._producer = cluster.producer(idempotent=True)

    def order(self, customer: str, item: str) -> None:
        self._producer.send("orders", item.encode(), key=customer.encode())

    def ordered_by(self, customer: str) -> list[str]:
        (records,) = self._cluster.read_all("orders").values()
        return [(r.value or b"").decode() for r in records if r.key == customer.encode()]


def test_orders_outlive_the_leader(logstore_cluster: Cluster) -> None:
    topic = logstore_cluster.create_topic("orders", config={"min.insync.replicas": 2})
    shop = Shop(logstore_cluster)
    shop.order("Ada", "two of these")

    leader = logstore_cluster.leader(topic[0])
    assert leader is not None
    logstore_cluster.crash(leader)
    shop.order("Ada", "one of those")

    assert logstore_cluster.leader(topic[0]) != leader
    assert shop.ordered_by("Ada") == ["two of these", "one of those"]
