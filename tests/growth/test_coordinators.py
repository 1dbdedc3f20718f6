"""Transactions and what a coordinator keeps of them. Groups: ``unit/coordinators``."""

from __future__ import annotations

from checkpoints.types import TopicPartition
from tests.growth.work import Act, Case, Per, check, for_cases
from tests.support.transactions import Desk, Producer


def named(count: int) -> list[TopicPartition]:
    return [TopicPartition("orders", number) for number in range(count)]


def loaded() -> Desk:
    desk = Desk().load()
    desk.shard.check_invariants = lambda: None  # type: ignore[method-assign]  # looks at all
    return desk


def begun(count: int) -> list[Producer]:
    """So many transactions, each open with one partition."""
    desk = loaded()
    producers = [desk.begin(name=f"id-{number}") for number in range(count)]
    for producer in producers:
        producer.add()
    return producers


def add_partitions(size: int) -> Act:
    producer = loaded().begin()
    return lambda: producer.add(*named(size))


def add_one_by_one(size: int) -> Act:
    producer = loaded().begin()
    return lambda: [producer.add(tp) for tp in named(size)]


def end_with_partitions(size: int) -> Act:
    producer = loaded().begin()
    producer.add(*named(size))
    return producer.end


def begin_each(size: int) -> Act:
    return lambda: begun(size)


def end_each(size: int) -> Act:
    producers = begun(size)
    return lambda: [producer.end() for producer in producers]


def end_beside(size: int) -> Act:
    (*_, one) = begun(size)
    return one.end


def load_each(size: int) -> Act:
    (one, *_) = begun(size)
    return lambda: one.desk.successor(1).load()


def time_out_each(size: int) -> Act:
    (one, *_) = begun(size)
    return lambda: one.desk.wait(120_000)


@for_cases(
    Case("add partitions", add_partitions),
    Case(
        "add partitions one by one",
        add_one_by_one,
        known="each record of a transaction has all its partitions, as Kafka's",
    ),
    Case("end with partitions", end_with_partitions),
    Case("begin transactions", begin_each),
    Case("end transactions", end_each),
    Case("end beside transactions", end_beside, Per.ONE),
    Case("load transactions", load_each),
    Case("transactions time out", time_out_each),
)
def test_a_coordinator_costs_what_it_does(case: Case) -> None:
    check(case)
