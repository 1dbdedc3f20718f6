"""Each client of the matrix: what it was told is acknowledged is there, once, in order."""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from tests.clients.matrix.clients import (
    ALL_CODECS,
    CLIENTS,
    Answer,
    DriverProcess,
    MatrixClient,
    answered,
    carry_out,
    start,
)
from tests.support.until import patience, until

pytestmark = pytest.mark.slow

PARTITIONS = 4
COUNT = 120
READ_S = int(patience())  # a whole number for every driver


def a_topic() -> str:
    """Return a name that no test had before; it comes to be when it is first written to."""
    return f"matrix-{uuid.uuid4()}"


def produce(topic: str, prefix: str = "v", count: int = COUNT, **more: Any) -> Mapping[str, Any]:
    return {
        "do": "produce",
        "topic": topic,
        "partitions": PARTITIONS,
        "prefix": prefix,
        "count": count,
        **more,
    }


def read(topic: str, count: int, **more: Any) -> Mapping[str, Any]:
    step = {"do": "read", "topic": topic, "partitions": PARTITIONS, "count": count}
    return {**step, "timeout_s": READ_S, **more}


def group(topic: str, name: str, **more: Any) -> Mapping[str, Any]:
    return {"do": "group", "topic": topic, "group": name, "timeout_s": READ_S, **more}


def values(prefix: str = "v", count: int = COUNT) -> set[str]:
    return {f"{prefix}{number}" for number in range(count)}


def check_read(answers: Sequence[Answer], expected: Iterable[str]) -> None:
    """Each expected value once, nothing else; per partition in order, at rising offsets."""
    records = [answer for answer in answers if "read" in answer]
    found = Counter(record["read"] for record in records)
    assert found == Counter(expected)
    for partition in range(PARTITIONS):
        own = [record for record in records if record["partition"] == partition]
        offsets = [record["offset"] for record in own]
        assert offsets == sorted(set(offsets))
        by_prefix: dict[str, list[int]] = {}
        for record in own:
            name = record["read"].rstrip("0123456789")
            number = int(record["read"].removeprefix(name))
            assert record["key"] == f"k{number}"
            assert number % PARTITIONS == partition
            by_prefix.setdefault(name, []).append(number)
        for numbers in by_prefix.values():
            assert numbers == sorted(numbers)


def check_acked(answers: Sequence[Answer], expected: set[str]) -> None:
    assert not list(answered(answers, "failed"))
    assert Counter(answered(answers, "acked")) == Counter(expected)


def test_codecs_acks_and_idempotence(client: MatrixClient, bootstrap: str) -> None:
    """All in one topic, batches of each beside the others."""
    topic = a_topic()
    ways: dict[str, dict[str, Any]] = {f"{codec}-": {"codec": codec} for codec in client.codecs}
    ways |= {"zero-": {"acks": "0"}, "one-": {"acks": "1"}, "once-": {"idempotent": True}}
    steps = [produce(topic, prefix, 40, **way) for prefix, way in ways.items()]
    wanted = set().union(*(values(prefix, 40) for prefix in ways))
    answers = carry_out(client, bootstrap, *steps, read(topic, len(wanted)))
    check_acked(answers, wanted)
    check_read(answers, wanted)


def test_transactions(client: MatrixClient, bootstrap: str) -> None:
    """Every second one aborts: a reader of what is committed sees the others, whole."""
    if "transactions" in client.lacks:
        pytest.skip(f"{client.name} has no transactions")
    topic = a_topic()
    step = produce(topic, transactional_id=topic, transaction_size=20)
    answers = carry_out(client, bootstrap, step)
    committed = list(itertools.chain(*answered(answers, "committed")))
    aborted = list(itertools.chain(*answered(answers, "aborted")))
    assert len(committed) == len(aborted) == COUNT // 2
    assert set(committed) | set(aborted) == values()
    # One more than there are: it reads on to the end, and finds no other.
    last = produce(topic, "last", 4, transactional_id=topic, transaction_size=4)
    read_on = read(topic, len(committed) + 4, isolation="read_committed")
    answers = carry_out(client, bootstrap, last, read_on)
    check_read(answers, [*committed, *values("last", 4)])


def test_commits(client: MatrixClient, bootstrap: str) -> None:
    """A member reads a part and leaves; the next one reads exactly the rest."""
    topic = a_topic()
    name = f"commits-{topic}"
    check_acked(carry_out(client, bootstrap, produce(topic)), values())
    first = carry_out(client, bootstrap, group(topic, name, count=1))
    done = len(list(answered(first, "read")))
    assert done >= 1
    second = []
    if done < COUNT:
        second = carry_out(client, bootstrap, group(topic, name, count=COUNT - done))
    check_read([*first, *second], values())


def test_rebalance(client: MatrixClient, bootstrap: str) -> None:
    """A second member comes and leaves again: all is read, partitions are shared meanwhile."""
    topic = a_topic()
    name = f"rebalance-{topic}"
    carry_out(client, bootstrap, produce(topic, "a", 40))
    members: list[DriverProcess] = []
    try:
        members.append(start(client, bootstrap, group(topic, name)))
        members[0].wait_for(40, "read")
        members.append(start(client, bootstrap, group(topic, name)))
        members[1].wait_for(1, "assigned")
        carry_out(client, bootstrap, produce(topic, "b", 40))
        _wait_for_all(members, values("a", 40) | values("b", 40))
        members[1].stop()
        second = members[1].finish()
        carry_out(client, bootstrap, produce(topic, "c", 40))
        wanted = values("a", 40) | values("b", 40) | values("c", 40)
        _wait_for_all(members, wanted)
        members[0].stop()
        first = members[0].finish()
    finally:
        for member in members:
            member.close()
    shares = [set(list(answered(answers, "assigned"))[-1]) for answers in (second,)]
    assert all(0 < len(share) < PARTITIONS for share in shares)
    assert set(answered([*first, *second], "read")) == wanted
    rest = carry_out(client, bootstrap, produce(topic, "d", 4), group(topic, name, count=4))
    assert set(answered(rest, "read")) == values("d", 4)  # all before it was committed


def _wait_for_all(members: Sequence[DriverProcess], wanted: set[str]) -> None:
    def all_is_read() -> bool:
        answers = [answer for member in members for answer in [*member.answers]]
        return wanted <= set(answered(answers, "read"))

    until(all_is_read, f"{len(wanted)} values are read")


def test_seek_by_time(client: MatrixClient, bootstrap: str) -> None:
    if "timestamps" in client.lacks:
        pytest.skip(f"{client.name} sets no timestamps")
    topic = a_topic()
    base = 1_700_000_000_000
    write = produce(topic, timestamp_ms=base)
    seek = read(topic, COUNT // 2, since_ms=base + COUNT // 2)
    answers = carry_out(client, bootstrap, write, seek)
    check_read(answers, {f"v{number}" for number in range(COUNT // 2, COUNT)})
    for answer in answers:
        if "read" in answer:
            assert answer["timestamp"] == base + int(answer["read"].removeprefix("v"))


def test_admin(client: MatrixClient, bootstrap: str) -> None:
    if "admin" in client.lacks:
        pytest.skip(f"{client.name} has no admin requests")
    before, after = carry_out(client, bootstrap, {"do": "admin", "topic": a_topic()})
    assert before == {"partitions": 3, "retention_ms": "123456", "listed": True}
    assert after == {"listed_after": False}


def test_every_client_reads_what_every_client_wrote(client: MatrixClient, bootstrap: str) -> None:
    """One topic for all; each adds its own and reads what is there by then."""
    if set(client.codecs) < set(ALL_CODECS):
        pytest.skip(f"{client.name} cannot read every codec")
    topic = _shared.setdefault(bootstrap, a_topic())
    prefix = f"{chr(ord('a') + CLIENTS.index(client))}-"
    write = produce(topic, prefix, 20, codec=client.codecs[len(_written) % len(client.codecs)])
    _written.append(prefix)
    wanted = set().union(*(values(name, 20) for name in _written))
    check_read(carry_out(client, bootstrap, write, read(topic, len(wanted))), wanted)


_shared: dict[str, str] = {}
_written: list[str] = []
