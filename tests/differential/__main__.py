"""The same sequences of requests to a real Kafka and to a broker of ours.

python -m tests.differential --seconds 60 --seed 1 --kind transactions
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from tests.clients.servers import running
from tests.differential import internal_topics, transcripts
from tests.differential.broker import Broker
from tests.differential.comparison import SETTINGS, Difference, compare
from tests.differential.rules import comparable
from tests.differential.sequences import admin, features, groups, produce, transactions, waits
from tests.differential.shrinking import Shrinker
from tests.differential.steps import Step, Tree, dump

NOTHING = "nothing"
KINDS = {
    "admin": admin.sequence,
    "features": features.sequence,
    "groups": groups.sequence,
    "produce": produce.sequence,
    "transactions": transactions.sequence,
    "waits": waits.sequence,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1_000_000)
    parser.add_argument("--kind", default="")
    parser.add_argument("--record", action="store_true", help="keep those without a difference")
    parser.add_argument("--records", action="store_true", help="compare internal topics, too")
    parser.add_argument("--show", type=int, default=3)
    parser.add_argument("--kafka", default="kafka")
    parser.add_argument("--ours", default="logstore")
    arguments = parser.parse_args()
    kinds = [each for each in KINDS if each == arguments.kind or not arguments.kind]
    asked: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    once: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory() as directory,
        running(arguments.kafka, Path(directory, "kafka"), SETTINGS) as kafka_address,
        running(arguments.ours, Path(directory, "logstore"), SETTINGS) as our_address,
    ):
        kafka, ours = Broker(kafka_address, 1), Broker(our_address, 0)
        for each in (kafka, ours):
            each.prepare()
        roots = [Path(directory, "kafka", "kafka", "data")]
        roots.append(Path(directory, "logstore", "data", "broker-0"))
        compared = 0
        end = time.monotonic() + arguments.seconds
        seed = arguments.seed
        stamp = f"{int(time.time()) % 100000}"
        while time.monotonic() < end and seed < arguments.seed + arguments.seeds:
            kind = kinds[seed % len(kinds)]
            name = f"s{stamp}-{seed}"
            sizes = [internal_topics.size_of(each) for each in roots]
            run = compare(KINDS[kind](seed, name), kafka, ours)
            if arguments.records and not run.differences:
                found = [
                    internal_topics.written_since(root, before, f"{name}-", broker.names)
                    for root, before, broker in zip(roots, sizes, (kafka, ours), strict=True)
                ]
                for topic, theirs in found[0].items():
                    compared += len(theirs)
                    for shape in _unequal(topic, theirs, found[1][topic]):
                        seen[shape] += 1
                        if seen[shape] == 1:
                            print(f"\n{kind} {seed} {shape}")
            if arguments.record and not run.differences:
                transcripts.DIRECTORY.mkdir(exist_ok=True)
                transcripts.write(transcripts.DIRECTORY / f"{kind}-{seed}.gz", run)
            for step in run.steps:
                asked[step.key.name] += 1
            for each in run.differences[: arguments.show]:
                shape = f"{each.step.key.name} {dump(_shapes(each))}"
                if seen[shape]:
                    seen[shape] += 1
                    continue
                shrinker = Shrinker(kafka, ours, name, each, shape_of)
                smallest = shrinker.smallest(run.steps[: each.number + 1])
                (once if smallest is None else seen)[shape] += 1
                command = f"python -m tests.differential --kind {kind} --seed {seed} --seeds 1"
                _show(command, *(smallest or ([], each)), again=smallest is not None)
            sys.stdout.flush()
            seed += 1
        kafka.close()
        ours.close()
    print(
        f"\n{seed - arguments.seed} sequences, {asked.total()} requests, "
        f"{compared} records, {seen.total()} differences of {len(seen)} shapes, "
        f"{once.total()} that did not come again"
    )
    print(asked)
    return 1 if seen else 0


def _unequal(topic: str, theirs: list[Tree], own: list[Tree]) -> list[str]:
    """The first difference, if there is one."""
    for at, (one, other) in enumerate(zip_longest(theirs, own)):
        if one != other:
            return [f"{topic} record {at}\n    Kafka {dump(one)}\n    ours  {dump(other)}"]
    return []


def _show(command: str, steps: list[Step], difference: Difference, *, again: bool) -> None:
    """The steps that it takes, and where the answers to the last one part."""
    print(f"\n{command}" + ("" if again else "\n  it did not come again:"))
    for each in steps if again else [difference.step]:
        print(f"  {each.client} {each.key.name} v{each.version} {dump(each.request)[:900]}")
    kafka, ours = (comparable(difference.step, each) for each in difference[2:])
    for place, one, other in _parted(kafka, ours, ""):
        print(f"    {place or 'the answer'}\n      Kafka {one[:600]}\n      ours  {other[:600]}")


def _parted(one: Tree, other: Tree, place: str) -> Iterator[tuple[str, str, str]]:
    """Places where two trees differ, with what is there."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from _parted(one.get(key, NOTHING), other.get(key, NOTHING), f"{place}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for at, pair in enumerate(zip(one, other, strict=True)):
            yield from _parted(*pair, f"{place}[{at}]")
    elif one != other:
        yield place, dump(one), dump(other)


def _shapes(difference: Difference) -> list[Tree]:
    return [shape_of(difference.kafka), shape_of(difference.ours)]


def shape_of(tree: Tree) -> Tree:
    """The fields and the errors of an answer, without its other values."""
    if isinstance(tree, dict):
        return {
            key: shape_of(value) if "error" not in key else value for key, value in tree.items()
        }
    if isinstance(tree, list):
        return sorted({dump(shape_of(each)) for each in tree})
    return type(tree).__name__


if __name__ == "__main__":
    sys.exit(main())
