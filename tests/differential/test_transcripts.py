"""Our broker answers recorded sequences as a real Kafka did."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.differential.broker import Broker
from tests.differential.comparison import OUR_SETTINGS, Answers
from tests.differential.steps import Step, dump
from tests.differential.transcripts import DIRECTORY, read, replay
from tests.support.served import served

TRANSCRIPTS = sorted(DIRECTORY.glob("*.gz"))


@pytest.fixture(scope="module")
def ours() -> Iterator[Broker]:
    with served(1, OUR_SETTINGS) as kafka:
        broker = Broker(kafka.bootstrap_servers)
        broker.prepare()
        yield broker
        broker.close()


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.name.split(".")[0])
def test_as_kafka(ours: Broker, path: Path) -> None:
    differences = replay(read(path), ours)
    assert not differences, "\n".join(
        f"step {each.number} {each.step.key.name} v{each.step.version} {dump(each.step.request)}\n"
        f"  Kafka {dump(each.kafka)}\n  ours  {dump(each.ours)}"
        for each in differences[:3]
    )


def test_there_are_transcripts() -> None:
    kinds = {path.name.split("-")[0] for path in TRANSCRIPTS}
    assert kinds == {"admin", "features", "produce", "transactions", "waits"}


def test_another_answer_is_found(ours: Broker) -> None:
    """If Kafka had given other offsets."""
    transcript = read(next(path for path in TRANSCRIPTS if path.name.startswith("produce")))
    changed = copy.deepcopy(transcript)
    parts = [
        part
        for _, answers in changed
        for answer in answers.values()
        for topic in answer.get("responses", ())
        for part in topic.get("partition_responses", ())
        if not part["error_code"]
    ]
    parts[-1]["base_offset"] = parts[-1].get("base_offset", 0) + 1
    assert len(replay(_elsewhere(changed, "-changed"), ours)) == 1
    assert not replay(_elsewhere(transcript, "-again"), ours)


def _elsewhere(
    transcript: list[tuple[Step, Answers]], suffix: str = "-other"
) -> list[tuple[Step, Answers]]:
    """The same with other topics, since those of the transcript are there already."""
    name = transcript[0][0].request["topics"][0]["name"].rpartition("-")[0]
    found = []
    for step, answers in transcript:
        text = dump([step.to_json(), answers]).replace(name, name + suffix)
        tree, kept = json.loads(text)
        found.append((Step.from_json(tree), {int(at): each for at, each in kept.items()}))
    return found
