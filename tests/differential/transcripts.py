"""Sequences with the answers of a real Kafka, kept so that they are asked without one.

A transcript is a file of ``transcripts/``: one line a step, with what was answered since the step
before. ``python -m tests.differential --record`` writes them. Groups are not among them: a join
that waits has no answer, so nothing says when the broker has it.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterable
from pathlib import Path

from tests.differential.broker import WAITED, Broker
from tests.differential.comparison import Answers, Difference, Run, after
from tests.differential.rules import comparable
from tests.differential.steps import Step, Tree, dump

DIRECTORY = Path(__file__).with_name("transcripts")
ANSWER_S = 30.0


def write(path: Path, run: Run) -> None:
    """Equal runs give equal bytes."""
    lines = [
        dump({"step": step.to_json(), "answers": answers})
        for step, answers in zip(run.steps, run.answers, strict=True)
    ]
    with path.open("wb") as file, gzip.GzipFile("", "wb", mtime=0, fileobj=file) as packed:
        packed.write("\n".join(lines).encode())


def read(path: Path) -> list[tuple[Step, Answers]]:
    found = []
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        tree = json.loads(line)
        answers = {int(number): answer for number, answer in tree["answers"].items()}
        found.append((Step.from_json(tree["step"]), answers))
    return found


def replay(transcript: Iterable[tuple[Step, Answers]], ours: Broker) -> list[Difference]:
    """Ask a broker the same, and wait after each step for what Kafka had answered by then."""
    ours.begin()
    steps: list[Step] = []
    mine: dict[int, Tree] = {}
    differences = []
    for number, (step, expected) in enumerate(transcript):
        steps.append(step)
        ours.send(number, step)
        end = time.monotonic() + ANSWER_S
        while not mine.keys() >= expected.keys() and time.monotonic() < end:
            mine |= ours.poll(0.05)
        for at, answer in sorted(expected.items()):
            own = mine.get(at, "nothing")
            # What must wait, waits. How soon an answer comes that is due depends on the machine.
            if isinstance(own, dict) and WAITED not in answer:
                own = {key: value for key, value in own.items() if key != WAITED}
            if comparable(steps[at], answer) != comparable(steps[at], own):
                differences.append(Difference(at, steps[at], answer, own))
        after(ours, step, expected.get(number))
    return differences
