"""A source that loses its tail, makes topics anew, expires records, changes its leaders, or becomes
another one: what is honest is followed, and what was given up for it is in the report."""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.mirror import PartitionState, SourceUnreachableError
from replication.mirror.observing import MirrorView, problems
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from tests.support.builders import batch, marker, produced
from tests.support.mirrored import (
    batches_of,
    check_holds,
    check_is_run_of,
    check_verifies,
    end_of,
    grow,
    log_of,
    mirroring,
    one_partition,
    report_of,
    reported,
    until_equal,
)
from tests.support.mirrors import caught_up, is_stuck
from tests.support.scripted_source import (
    KAFKA_2_1,
    KAFKA_2_8,
    KAFKA_4,
    Exchange,
    ScriptedSource,
    SourceLog,
    SourceTopic,
    Versions,
    header_of,
    on_answers,
    on_parts,
    with_code,
)
from tests.support.until import patience, until

ORDERS, OTHERS = TopicPartition("orders", 0), TopicPartition("others", 0)
EACH_AGE = pytest.mark.parametrize(
    "versions", [KAFKA_4, KAFKA_2_8, KAFKA_2_1], ids=["4", "2.8", "2.1"]
)


def _source(
    versions: Versions = KAFKA_4, brokers: int = 1, **topics: SourceTopic
) -> ScriptedSource:
    both = {
        "orders": one_partition(log_of((3, 0), (3, 1), word="o")),
        "others": one_partition(log_of((3, 0), (3, 1), word="x")),
    }
    return ScriptedSource({**both, **topics}, versions=versions, brokers=brokers)


def _lose_tail(log: SourceLog, batches: int) -> None:
    """An unclean election: another leader, which never had the tail, goes on."""
    del log.batches[-batches:]
    log.leader_epoch += 2


@EACH_AGE
@pytest.mark.parametrize("goes_on", [0, 1, 5], ids=["shorter", "a bit", "longer"])
def test_an_unclean_election(versions: Versions, goes_on: int, tmp_path: Path) -> None:
    """The tail is cut where the histories part, and the report says which offsets."""
    with _source(versions) as source, mirroring(source, tmp_path):
        until_equal(source, tmp_path)
        before = end_of(tmp_path, ORDERS)

        def elect() -> None:
            log = source.log("orders")
            _lose_tail(log, 2)
            grow(log, goes_on, word="new")

        source.change(elect)
        until_equal(source, tmp_path)
        until(lambda: reported(tmp_path, ORDERS), "the cut is reported")
        cut = source.log("orders").end - 2 * goes_on
        text = str(reported(tmp_path, ORDERS))
        assert str(cut) in text
        assert str(before) in text or str(before - 1) in text
        source.change(lambda: grow(source.log("orders")))
        until_equal(source, tmp_path)
    check_holds(tmp_path, source.logs())
    check_verifies(tmp_path)
    assert not reported(tmp_path, OTHERS)


@EACH_AGE
def test_an_unclean_election_while_the_mirror_is_down(versions: Versions, tmp_path: Path) -> None:
    with _source(versions) as source:
        with mirroring(source, tmp_path):
            until_equal(source, tmp_path)

        def elect() -> None:
            log = source.log("orders")
            _lose_tail(log, 3)
            log.leader_epoch += 1
            grow(log, 4, word="new")

        source.change(elect)
        with mirroring(source, tmp_path):
            until_equal(source, tmp_path)
            until(lambda: reported(tmp_path, ORDERS), "the cut is reported")
    check_holds(tmp_path, source.logs())
    check_verifies(tmp_path)


@pytest.mark.parametrize("versions", [KAFKA_2_8, KAFKA_2_1], ids=["2.8", "2.1"])
def test_a_source_that_knows_no_epochs(versions: Versions, tmp_path: Path) -> None:
    """Whether it has the same history is not known, so nothing of it is appended, nor cut here."""

    def know_nothing(exchange: Exchange) -> None:
        exchange.answer = exchange.answer._replace(
            topics=tuple(
                topic._replace(
                    partitions=tuple(
                        part._replace(leader_epoch=-1, end_offset=-1) for part in topic.partitions
                    )
                )
                for topic in exchange.answer.topics
            )
        )

    with _source(versions) as source:
        with mirroring(source, tmp_path):
            until_equal(source, tmp_path)
        held = batches_of(tmp_path, ORDERS)

        def elect() -> None:
            log = source.log("orders")
            _lose_tail(log, 3)
            log.leader_epoch += 1
            grow(log, 9, word="new")
            source.lies.append(on_answers(ApiKey.OFFSET_FOR_LEADER_EPOCH, know_nothing))

        source.change(elect)
        with mirroring(source, tmp_path):
            until(lambda: reported(tmp_path, ORDERS), "it is reported")
            assert batches_of(tmp_path, ORDERS) == held
            source.change(source.lies.clear)
            until_equal(source, tmp_path)
    check_holds(tmp_path, source.logs())
    check_verifies(tmp_path)


@EACH_AGE
def test_a_tail_that_is_still_to_be_cut_is_not_caught_up(
    versions: Versions, tmp_path: Path
) -> None:
    """The end of the new leader lies below ours; only what it answers says which records are
    its."""
    code = ErrorCode.KAFKA_STORAGE_ERROR

    def refuse(exchange: Exchange) -> None:
        exchange.answer = exchange.answer._replace(
            topics=tuple(
                topic._replace(
                    partitions=tuple(
                        part._replace(error_code=code, leader_epoch=-1, end_offset=-1)
                        for part in topic.partitions
                    )
                )
                for topic in exchange.answer.topics
            )
        )

    silent = [
        on_parts(with_code(code), "orders"),
        on_answers(ApiKey.OFFSET_FOR_LEADER_EPOCH, refuse),
    ]
    with _source(versions) as source, mirroring(source, tmp_path) as mirror:
        until_equal(source, tmp_path)

        def elect() -> None:
            _lose_tail(source.log("orders"), 2)
            source.lies += silent

        source.change(elect)
        assert is_stuck(mirror)
        source.change(source.lies.clear)
        caught_up(mirror)
        assert batches_of(tmp_path, ORDERS) == source.log("orders").batches
    check_verifies(tmp_path)


def test_diverging_in_a_circle(tmp_path: Path) -> None:
    """A leader that always wants another cut: nothing that is true is cut, nothing spins."""
    with _source() as source, mirroring(source, tmp_path):
        until_equal(source, tmp_path)
        kind = wire.FetchResponse.EpochEndOffset

        def lie() -> None:
            source.lies.append(
                on_parts(lambda p: p._replace(records=b"", diverging_epoch=kind(1, 9)), "orders")
            )
            grow(source.log("others"))

        source.change(lie)
        until_equal(source, tmp_path, OTHERS)
        check_holds(tmp_path, source.logs())
        source.change(source.lies.clear)
        until_equal(source, tmp_path)
    check_holds(tmp_path, source.logs())
    check_verifies(tmp_path)


@pytest.mark.parametrize("versions", [KAFKA_4, KAFKA_2_8], ids=["4", "2.8"])
@pytest.mark.parametrize("is_seen", [True, False], ids=["running", "down"])
def test_a_topic_made_anew(versions: Versions, is_seen: bool, tmp_path: Path) -> None:
    """The old log is set aside whole, and the new one begins."""
    with _source(versions) as source:
        old = [*source.log("orders").batches]

        def anew() -> None:
            source.topics["orders"] = one_partition(log_of((2, 0), word="second"))

        with mirroring(source, tmp_path):
            until_equal(source, tmp_path)
            if is_seen:
                source.change(anew)
                until_equal(source, tmp_path)
        if not is_seen:
            source.change(anew)
            with mirroring(source, tmp_path):
                until_equal(source, tmp_path)
        check_holds(tmp_path, source.logs())
    check_verifies(tmp_path)
    aside = [path for path in tmp_path.iterdir() if path.name.endswith("-stray")]
    assert len(aside) == 1
    kept = b"".join(path.read_bytes() for path in sorted(aside[0].glob("*.log")))
    assert kept == b"".join(old)
    assert any(each.get("topic") == "orders" for each in report_of(tmp_path))


def test_a_broker_that_is_behind_the_others_brings_no_topic_back(tmp_path: Path) -> None:
    """X-173: it names the former id of a topic, which must not set the log of the later one
    aside, nor keep it from being mirrored when that broker is well again."""
    is_behind = threading.Event()

    def lie(exchange: Exchange) -> None:
        if exchange.key is ApiKey.METADATA and exchange.broker == 1 and is_behind.is_set():
            topics = exchange.answer.topics
            former = uuid.UUID(int=7)
            exchange.answer = exchange.answer._replace(
                topics=tuple(each._replace(topic_id=former) for each in topics)
            )
            seen.set()

    seen = threading.Event()
    orders = one_partition(log_of((5, 1)))
    with (
        ScriptedSource({"orders": orders}, brokers=3, lies=[lie]) as source,
        mirroring(source, tmp_path) as mirror,
    ):
        until_equal(source, tmp_path)
        is_behind.set()
        assert seen.wait(patience())
        source.change(lambda: grow(source.log("orders")))
        until_equal(source, tmp_path)
        caught_up(mirror)
        is_behind.clear()
        source.change(lambda: grow(source.log("orders")))
        until_equal(source, tmp_path)
        assert not mirror.report.findings


def test_brokers_that_do_not_agree_change_nothing(tmp_path: Path) -> None:
    """Of two brokers one is behind, and nobody knows which one. Then both say the same."""
    later = uuid.UUID(int=8)
    deceived = {0}

    def lie(exchange: Exchange) -> None:
        if exchange.key is ApiKey.METADATA and exchange.broker in deceived:
            topics = exchange.answer.topics
            exchange.answer = exchange.answer._replace(
                topics=tuple(each._replace(topic_id=later) for each in topics)
            )

    orders = one_partition(log_of((5, 1)))
    with ScriptedSource({"orders": orders}, brokers=2) as source:
        with mirroring(source, tmp_path):
            until_equal(source, tmp_path)
        source.lies.append(lie)
        with mirroring(source, tmp_path):
            until(lambda: report_of(tmp_path), "it is reported")
            assert [each["kind"] for each in report_of(tmp_path)] == ["contradiction"]
            assert end_of(tmp_path, ORDERS) == 10
            deceived.add(1)
            until(lambda: len(report_of(tmp_path)) > 1, "all say the same")
            assert report_of(tmp_path)[1]["kind"] == "set-aside"


def test_a_topic_made_anew_again_and_again(tmp_path: Path) -> None:
    with _source() as source, mirroring(source, tmp_path):
        for number in range(4):
            topic = one_partition(log_of((2, 0), word=f"{number}-"))
            source.change(partial(source.topics.update, orders=topic))
            until_equal(source, tmp_path)
    check_holds(tmp_path, source.logs())
    check_verifies(tmp_path)


def test_a_topic_that_is_gone_and_comes_back(tmp_path: Path) -> None:
    """Its log stays; a broker that did not know it for a moment costs nothing."""
    with _source() as source, mirroring(source, tmp_path):
        until_equal(source, tmp_path)
        held = batches_of(tmp_path, ORDERS)
        topic = source.topics["orders"]
        source.change(lambda: source.topics.pop("orders"))
        metadata = source.asked[ApiKey.METADATA]
        until(lambda: source.asked[ApiKey.METADATA] >= metadata + 3, "it is seen to be gone")
        source.change(lambda: grow(source.log("others")))
        until_equal(source, tmp_path, OTHERS)
        assert batches_of(tmp_path, ORDERS) == held
        grow(topic.partitions[0])
        source.change(lambda: source.topics.update(orders=topic))
        until_equal(source, tmp_path)
    check_verifies(tmp_path)


def test_partitions_come_and_go(tmp_path: Path) -> None:
    with _source() as source, mirroring(source, tmp_path):
        until_equal(source, tmp_path)
        added = log_of((4, 0), word="added")
        source.change(lambda: source.topics["orders"].partitions.update({1: added}))
        until_equal(source, tmp_path)
        source.change(lambda: source.topics["orders"].partitions.pop(1))
        source.change(lambda: grow(source.log("orders")))
        until_equal(source, tmp_path)
        assert batches_of(tmp_path, TopicPartition("orders", 1)) == added.batches
    check_verifies(tmp_path)


@EACH_AGE
def test_records_expire_before_they_are_read(versions: Versions, tmp_path: Path) -> None:
    """The range that nobody can read any more is in the report."""
    with _source(versions) as source:
        with mirroring(source, tmp_path):
            until_equal(source, tmp_path)
        end = end_of(tmp_path, ORDERS)
        log = source.log("orders")
        grow(log, 6)
        log.log_start = end + 6
        log.batches = [each for each in log.batches if header_of(each).base >= log.log_start]
        with mirroring(source, tmp_path):
            until_equal(source, tmp_path)
            until(lambda: reported(tmp_path, ORDERS), "the lost range is reported")
    text = str(reported(tmp_path, ORDERS))
    assert str(end) in text
    assert str(end + 6) in text or str(end + 5) in text
    check_verifies(tmp_path)


@pytest.mark.parametrize("keep", [True, False], ids=["keep", "follow"])
def test_records_are_deleted_at_the_source(keep: bool, tmp_path: Path) -> None:
    with _source() as source, mirroring(source, tmp_path, keep_deleted=keep):
        until_equal(source, tmp_path)
        whole = [*source.log("orders").batches]

        def delete() -> None:
            log = source.log("orders")
            log.log_start = 6
            del log.batches[:3]
            grow(log)
            whole.append(log.batches[-1])

        source.change(delete)
        if keep:
            until(lambda: batches_of(tmp_path, ORDERS) == whole, "all is kept")
        else:
            until(lambda: end_of(tmp_path, ORDERS) == header_of(whole[-1]).last + 1, "it goes on")
            check_is_run_of(batches_of(tmp_path, ORDERS), whole)
    check_verifies(tmp_path)


def test_all_is_deleted_at_the_source_before_it_is_read(tmp_path: Path) -> None:
    """What is here is kept, and there is nothing to wait for; the loss is said once (X-175)."""
    with _source() as source:
        with mirroring(source, tmp_path, keep_deleted=True):
            until_equal(source, tmp_path)
        end = end_of(tmp_path, ORDERS)
        log = source.log("orders")

        def expire() -> None:
            grow(log, 5)
            log.log_start = log.base = log.end
            log.batches.clear()

        for run in range(3):
            if run != 1:
                source.change(expire)
            with mirroring(source, tmp_path, keep_deleted=True) as mirror:
                caught_up(mirror)
                status = mirror.status.partitions[ORDERS]
                assert (status.lag, status.log_end_offset) == (0, end)
        spans = [(each["from"], each["to"]) for each in report_of(tmp_path)]
        assert spans == [(end, end + 10), (end + 10, end + 20)]
        source.change(lambda: grow(log))
        with mirroring(source, tmp_path, keep_deleted=True) as mirror:
            caught_up(mirror)
            assert end_of(tmp_path, ORDERS) == log.end


def test_all_is_deleted_at_the_source_before_the_first_record_came(tmp_path: Path) -> None:
    with _source() as source:
        log = source.log("orders")
        source.lies.append(on_parts(lambda part: part._replace(records=b""), topic="orders"))
        with mirroring(source, tmp_path) as mirror:
            until(lambda: mirror.status.lag > 0, "it knows of records")
            end = log.end

            def expire() -> None:
                log.log_start = log.base = log.end
                log.batches.clear()
                source.lies.clear()

            source.change(expire)
            until(lambda: report_of(tmp_path), "the loss is reported")
        (event,) = report_of(tmp_path)
        assert (event["kind"], event["from"], event["to"]) == ("lost", 0, end)


def test_the_log_starts_inside_a_batch(tmp_path: Path) -> None:
    """The first batch begins below the offset that was asked for."""
    log = log_of((3, 0), (3, 1), size=4)
    log.log_start = 10
    log.batches = log.batches[2:]
    with _source(orders=one_partition(log)) as source, mirroring(source, tmp_path):
        until_equal(source, tmp_path)
        source.change(lambda: grow(log))
        until_equal(source, tmp_path)
    check_holds(tmp_path, source.logs())
    check_verifies(tmp_path)


def test_gaps_markers_and_large_batches(tmp_path: Path) -> None:
    """What compaction and transactions leave; a batch above every limit of a fetch."""
    log = SourceLog(leader_epoch=3)
    log.batches = [
        batch(0, 2, epoch=0),
        batch(7, 1, epoch=0),
        produced(7, 0, 2, transactional=True, base_offset=1000),
        marker(commit=True, producer_id=7, base_offset=1002),
        produced(7, 2, 2, transactional=True, base_offset=1003),
        marker(commit=False, producer_id=7, base_offset=1005),
        batch(2**40, 1, epoch=2, value=bytes(5 << 20)),
        batch(2**40 + 9, 1, epoch=3, value=bytes(100)),
    ]
    topic = one_partition(log, config={"cleanup.policy": "compact"})
    with _source(orders=topic) as source, mirroring(source, tmp_path):
        until_equal(source, tmp_path)
    assert batches_of(tmp_path, ORDERS) == log.batches
    check_verifies(tmp_path)


def test_leaders_change(tmp_path: Path) -> None:
    with _source(brokers=3) as source, mirroring(source, tmp_path):
        for number in range(6):

            def move(number: int = number) -> None:
                for log in source.logs().values():
                    log.leader = (log.leader + 1) % 3 if number != 3 else -1
                    log.leader_epoch += 1
                    grow(log)

            source.change(move)
            if number != 3:
                until_equal(source, tmp_path)
    check_holds(tmp_path, source.logs())
    check_verifies(tmp_path)
    assert not reported(tmp_path, ORDERS)


@EACH_AGE
def test_somebody_else_at_the_address(versions: Versions, tmp_path: Path) -> None:
    """Another cluster, with topics of the same names: nothing of it is taken, nothing is cut."""
    with _source(versions) as source, mirroring(source, tmp_path) as mirror:
        until_equal(source, tmp_path)
        held = batches_of(tmp_path, ORDERS)
        own_id, own = source.cluster_id, dict(source.topics)

        def become_another() -> None:
            source.cluster_id = "somebody-elses-000000"
            source.topics = {
                "orders": one_partition(log_of((2, 0), (9, 7), word="else")),
                "others": one_partition(log_of((2, 0), word="else")),
                "foreign": one_partition(log_of((2, 0), word="else")),
            }
            source.drop_connections()

        source.change(become_another)
        asked = sum(source.asked.values())
        until(lambda: sum(source.asked.values()) >= asked + 4, "it is asked")
        assert batches_of(tmp_path, ORDERS) == held
        assert not (tmp_path / "foreign-0").exists()

        def come_back() -> None:
            source.cluster_id, source.topics = own_id, own
            grow(source.log("orders"))
            source.drop_connections()

        source.change(come_back)
        until_equal(source, tmp_path)
        assert mirror.status
    check_holds(tmp_path, source.logs())
    assert not (tmp_path / "foreign-0").exists()
    check_verifies(tmp_path)


@pytest.mark.parametrize("key", [ApiKey.FETCH, ApiKey.METADATA, ApiKey.LIST_OFFSETS], ids=str)
def test_a_source_that_falls_silent(key: ApiKey, tmp_path: Path) -> None:
    """``close`` does not wait for it."""

    def be_silent(exchange: Exchange) -> None:
        exchange.answer = None

    with _source() as source:
        with mirroring(source, tmp_path):
            until_equal(source, tmp_path)
            asked = source.asked[ApiKey.FETCH] + source.asked[ApiKey.METADATA]
            source.change(lambda: source.lies.append(on_answers(key, be_silent)))
            source.change(lambda: grow(source.log("orders")))
            until(
                lambda: source.asked[ApiKey.FETCH] + source.asked[ApiKey.METADATA] > asked,
                "it is asked",
            )
        check_holds(tmp_path, source.logs())
        source.lies.clear()
        with mirroring(source, tmp_path):
            until_equal(source, tmp_path)
    check_verifies(tmp_path)


def test_a_source_that_is_silent_from_the_start(tmp_path: Path) -> None:
    def be_silent(exchange: Exchange) -> None:
        exchange.answer = None

    with _source() as source:
        source.lies.append(be_silent)
        closed = threading.Event()

        def run() -> None:
            try:
                with suppress(SourceUnreachableError), mirroring(source, tmp_path):
                    until(lambda: sum(source.asked.values()) >= 1, "it is asked")
            finally:
                closed.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert closed.wait(patience())


def test_a_throttle_of_weeks(tmp_path: Path) -> None:
    """It is obeyed, as far as any quota goes; ``close`` does not wait for its end."""

    def throttle(exchange: Exchange) -> None:
        exchange.answer = exchange.answer._replace(throttle_time_ms=2**31 - 1, responses=())

    with _source() as source:
        with mirroring(source, tmp_path):
            until_equal(source, tmp_path)
            told = threading.Event()

            def tell(exchange: Exchange) -> None:
                throttle(exchange)
                told.set()

            source.change(lambda: source.lies.append(on_answers(ApiKey.FETCH, tell)))
            source.change(lambda: grow(source.log("orders")))
            until(told.is_set, "it is told")
        source.lies.clear()
        with mirroring(source, tmp_path):
            until_equal(source, tmp_path)
    check_verifies(tmp_path)


def test_configurations_that_may_not_be_read(tmp_path: Path) -> None:
    def refuse(exchange: Exchange) -> None:
        exchange.answer = exchange.answer._replace(
            results=tuple(
                each._replace(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, configs=())
                for each in exchange.answer.results
            )
        )

    with _source() as source:
        source.lies.append(on_answers(ApiKey.DESCRIBE_CONFIGS, refuse))
        with mirroring(source, tmp_path):
            until_equal(source, tmp_path)
    check_verifies(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        "a/b",
        "../escaped",
        "x" * 250,
        "orders-0",
        "a\0b",
        "a\nb",
        "",
        "__cluster_metadata",
    ],
)
def test_hostile_names_of_topics(name: str, tmp_path: Path) -> None:
    """What is no name of a topic makes no directory anywhere."""
    directory = tmp_path / "mirror"
    directory.mkdir()
    with _source() as source:
        source.topics[name] = one_partition(log_of((1, 0)))
        with mirroring(source, directory):
            until_equal(source, directory, ORDERS, OTHERS)
    assert [path.name for path in tmp_path.iterdir()] == ["mirror"]
    check_verifies(directory)


@pytest.mark.parametrize("number", [-1, 2**31 - 1])
def test_hostile_numbers_of_partitions(number: int, tmp_path: Path) -> None:
    with _source() as source:
        source.topics["orders"].partitions[number] = log_of((1, 0))
        with mirroring(source, tmp_path):
            until_equal(source, tmp_path, ORDERS, OTHERS)
    check_verifies(tmp_path)


def test_hostile_configurations(tmp_path: Path) -> None:
    """They change nothing but a configuration, and none that is no configuration is taken."""
    config = {
        "segment.bytes": "-5",
        "retention.ms": "0",
        "cleanup.policy": "compact",
        "no.such.key": "\n[x]\nsegment.bytes=1",
        "max.message.bytes": "1",
        "retention.bytes": "9" * 400,
    }
    log = log_of((3, 0), (3, 1))
    with _source(orders=one_partition(log, config=config)) as source, mirroring(source, tmp_path):
        until_equal(source, tmp_path)
        source.change(lambda: grow(log))
        until_equal(source, tmp_path)
    assert batches_of(tmp_path, ORDERS) == log.batches
    check_verifies(tmp_path)


def test_an_id_of_zeros(tmp_path: Path) -> None:
    """A source that has ids, and none for this topic."""
    topic = one_partition(log_of((3, 0)), topic_id=uuid.UUID(int=0))
    with _source(orders=topic) as source, mirroring(source, tmp_path):
        until_equal(source, tmp_path, OTHERS)
    check_holds(tmp_path, source.logs())
    check_verifies(tmp_path)


def test_who_does_not_answer_is_not_caught_up(tmp_path: Path) -> None:
    """Another broker's answers say nothing about the partitions of one that is silent."""
    silent: list[Exchange] = []
    is_silent = threading.Event()

    def be_silent(exchange: Exchange) -> None:
        if is_silent.is_set() and exchange.broker == 1 and exchange.key is ApiKey.FETCH:
            exchange.cut_at = 0
            silent.append(exchange)

    with _source(brokers=2) as source:
        source.log("others").leader = 1
        source.lies.append(be_silent)
        with mirroring(source, tmp_path, silence_ms=300) as mirror:
            until_equal(source, tmp_path)
            until(lambda: mirror.status.count(PartitionState.CAUGHT_UP) == 2)
            is_silent.set()
            source.drop_connections()
            source.change(lambda: grow(source.log("others"), 5))
            until(lambda: mirror.status.count(PartitionState.FAILED) == 1)
            states = {tp: each.state for tp, each in mirror.status.partitions.items()}
            assert states == {ORDERS: PartitionState.CAUGHT_UP, OTHERS: PartitionState.FAILED}
            (problem,) = problems(MirrorView(mirror.status))
            assert "others-0 is failed: its leader has not answered for" in problem
            is_silent.clear()
            until(lambda: mirror.status.count(PartitionState.CAUGHT_UP) == 2)
            until_equal(source, tmp_path)
    assert silent


def test_a_refusal_that_lasts_is_a_finding(tmp_path: Path) -> None:
    """The source was put back to an earlier state: its epochs fell."""
    with _source() as source, mirroring(source, tmp_path, silence_ms=300) as mirror:
        until_equal(source, tmp_path)
        until(lambda: mirror.status.count(PartitionState.CAUGHT_UP) == 2)

        def fall() -> None:
            source.log("orders").leader_epoch = 0

        source.change(fall)
        source.drop_connections()
        until(lambda: "failed" in str(reported(tmp_path, ORDERS)), "it is a finding")
        found = mirror.status.partitions[ORDERS]
        assert found.state is PartitionState.FAILED
        assert "UNKNOWN_LEADER_EPOCH" in found.reason
        assert mirror.status.partitions[OTHERS].state is PartitionState.CAUGHT_UP


def test_that_a_topic_is_gone_is_said_by_one_run(tmp_path: Path) -> None:
    def told() -> list[str]:
        return [each["kind"] for each in reported(tmp_path, ORDERS)]

    with _source() as source:
        with mirroring(source, tmp_path):
            until_equal(source, tmp_path)
        orders = source.topics.pop("orders")
        for _ in range(3):
            with mirroring(source, tmp_path) as mirror:
                caught_up(mirror)
        assert told() == ["gone"]
        source.change(lambda: source.topics.update(orders=orders))
        for _ in range(2):
            with mirroring(source, tmp_path) as mirror:
                caught_up(mirror)
        assert told() == ["gone", "back"]
