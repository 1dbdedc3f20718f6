"""The controller: topics, partitions and brokers, each and beside so many."""

from __future__ import annotations

from replication.common.messages import (
    AlterableConfig,
    ElectionType,
)
from tests.growth.work import Act, Case, Per, check, for_cases
from tests.support.controllers import Brokers

REPLICAS = (1, 2, 3)


def holding(partitions: int, topics: int = 1) -> Brokers:
    brokers = Brokers()
    for number in range(topics):
        brokers.create("t" if number == 0 else f"t{number}", (REPLICAS,) * partitions)
    return brokers


def create_each(size: int) -> Act:
    brokers = holding(1)
    return lambda: brokers.create("new", (REPLICAS,) * size)


def create_beside_partitions(size: int) -> Act:
    brokers = holding(size)
    return lambda: brokers.create("new")


def create_beside_topics(size: int) -> Act:
    brokers = holding(1, size)
    return lambda: brokers.create("new")


def delete_each(size: int) -> Act:
    brokers = holding(size)
    return brokers.delete


def delete_beside_partitions(size: int) -> Act:
    brokers = holding(size)
    brokers.create("new")
    return lambda: brokers.delete("new")


def delete_beside_topics(size: int) -> Act:
    brokers = holding(1, size)
    return brokers.delete


def grow_each(size: int) -> Act:
    brokers = holding(1)
    return lambda: brokers.grow(1 + size, *((REPLICAS,) * size))


def grow_beside(size: int) -> Act:
    """The record of a topic has all its partitions, so it is another topic that is large."""
    brokers = holding(1)
    brokers.create("large", (REPLICAS,) * size)
    return lambda: brokers.grow(2, REPLICAS)


def configure_beside(size: int) -> Act:
    brokers = holding(1)
    brokers.create("large", (REPLICAS,) * size)
    change = AlterableConfig("retention.ms", "1000")
    return lambda: brokers.configure(change)


def broker_dies(size: int) -> Act:
    brokers = holding(size)
    return lambda: brokers.kill(3)


def leader_dies(size: int) -> Act:
    brokers = Brokers()
    brokers.create("t", ((3, 1, 2),) * size)
    return lambda: brokers.kill(3)


def broker_returns(size: int) -> Act:
    brokers = holding(size)
    brokers.kill(3)
    return lambda: brokers.start(3)


def controller_dies(size: int) -> Act:
    brokers = holding(size)
    assert brokers.controllers[1].active
    return lambda: brokers.kill(1)  # the first to stand


def elect_each(size: int) -> Act:
    brokers = Brokers()
    brokers.create("t", ((3, 1, 2),) * size)
    brokers.kill(3)
    brokers.start(3)
    return lambda: brokers.elect(ElectionType.PREFERRED)


def reassign_beside(size: int) -> Act:
    brokers = Brokers(4)
    brokers.create("t")
    brokers.create("large", (REPLICAS,) * size)
    return lambda: brokers.reassign((2, 3, 4))


def alter_beside(size: int) -> Act:
    brokers = holding(1)
    brokers.create("large", (REPLICAS,) * size)
    return lambda: brokers.alter((1, 2))


@for_cases(
    Case("create partitions", create_each),
    Case("create beside partitions", create_beside_partitions, Per.ONE),
    Case("create beside topics", create_beside_topics, Per.ONE),
    Case("delete partitions", delete_each),
    Case("delete beside partitions", delete_beside_partitions, Per.ONE),
    Case("delete beside topics", delete_beside_topics, Per.ONE),
    Case("grow by partitions", grow_each),
    Case("grow beside partitions", grow_beside, Per.ONE),
    Case("configure beside partitions", configure_beside, Per.ONE),
    Case("a broker dies", broker_dies),
    Case("a leader dies", leader_dies),
    Case("a broker returns", broker_returns),
    Case("a controller dies", controller_dies),
    Case("elect", elect_each),
    Case("reassign beside partitions", reassign_beside, Per.ONE),
    Case("ISR beside partitions", alter_beside, Per.ONE),
)
def test_a_controller_costs_what_it_does(case: Case) -> None:
    check(case)
