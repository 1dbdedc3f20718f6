"""Names of directories and files (F-1…F-6, F-16…F-24)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints.types import TopicPartition
from logstore.common.errors import InvalidTopicError
from logstore.format import filenames as names
from tests.support.cases import for_each

ID = "0123456789abcdef0123456789abcdef"
TOPICS = st.from_regex(r"\A[a-zA-Z0-9._-]{1,249}\Z").filter(lambda topic: topic not in (".", ".."))


@settings(max_examples=50)
@given(TOPICS, st.integers(0, 2**31 - 1))
def test_partition_names_come_back(topic: str, partition: int) -> None:
    names.validate_topic(topic)
    tp = TopicPartition(topic, partition)
    assert names.parse_partition_dir(names.partition_dir_name(tp)) == (tp, "", "")
    future = names.parse_partition_dir(f"{tp}.{ID}-future")
    assert future == (tp, "-future", ID)
    for make, suffix in (
        (names.delete_dir_name, "-delete"),
        (names.stray_dir_name, "-stray"),
    ):
        name = make(tp, ID)
        assert len(name) <= 255
        parsed = names.parse_partition_dir(name)
        assert (parsed.suffix, parsed.unique_id) == (suffix, ID)
        assert parsed.topic_partition.partition == partition
        assert topic.startswith(parsed.topic_partition.topic)  # it may be cut (F-5)
        assert len(name) == 255 or parsed.topic_partition.topic == topic


def test_the_topic_ends_at_the_last_dash() -> None:
    assert names.parse_partition_dir("a-b-0").topic_partition == ("a-b", 0)
    assert names.parse_partition_dir("t-2147483647").topic_partition == ("t", 2**31 - 1)


@for_each(
    "name",
    [
        "",
        "topic",
        "-0",
        "topic-",
        "topic-x",
        "topic-2147483648",
        "topic--",
        "topic-1 ",
        "topic-0-delete",
        "topic-0.-delete",
        "topic-delete",
        "-delete",
        "a b-0.id-future",
        "topic-x.id-stray",
        "topic-١",
        "topic-007",
        "topic-+0",
        "topic-00",
        "a b-0",
        "a\n-0",
        "topic-0\n",
        "ä-0",
        "\udcff\udcfe-0",
        "..-0",
        ".-0",
        "a" * 250 + "-0",
        "topic-" + "9" * 5000,
        "topic-0.a.b\n-delete",
        "topic-0.\udcff-delete",
        "a\x1b[31m-0",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopicError):
        names.parse_partition_dir(name)


@for_each("topic", ["", ".", "..", "a b", "a/b", "ä", "a" * 250, "a\n"])
def test_bad_topics(topic: str) -> None:
    with pytest.raises(InvalidTopicError):
        names.validate_topic(topic)


def test_collision() -> None:
    assert names.topics_collide("a.b_c", "a_b.c")
    assert not names.topics_collide("a.b", "ab")


@given(
    st.integers(0, 2**63 - 1),
    st.sampled_from([*names.SEGMENT_SUFFIXES, names.SNAPSHOT_SUFFIX]),
    st.sampled_from(["", *names.TRANSITIONAL_SUFFIXES]),
)
def test_segment_names_come_back(offset: int, suffix: str, transition: str) -> None:
    name = names.segment_file_name(offset, suffix, transition)
    assert name.index(".") == 20
    assert names.parse_segment_file(name) == (offset, suffix, transition)


BASE = "0" * 19 + "5"


@for_each(
    "name",
    [
        ".log",
        "x.log",
        "-5.log",
        "5.log",
        "5.lo",
        "5",
        BASE,
        f"{BASE}.log.tmp",
        ".lock",
        f"{2**63:020}.log",
        f"{10**20 - 1}.log",
        "0" + BASE + ".log",
        BASE[1:] + ".log",
        "+" + BASE[1:] + ".log",
        " " + BASE[1:] + ".log",
        BASE[:-1] + "٥.log",
        BASE[:-1] + "².log",
        f"{BASE}.log\n",
        f"{BASE}\n.log",
        f"{BASE}.LOG",
        f"{BASE}.log\udcff",
        "leader-epoch-checkpoint",
        f"{BASE}.deleted",
        f"{BASE}.log.swap.swap",
        "1_000_000_000_000_000.log",
    ],
)
def test_other_files_are_no_segment(name: str) -> None:
    assert names.parse_segment_file(name) is None
