"""Every command speaks JSON, and all of it spells keys in one way: camelCase, as Kafka's tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner

from logstore import LogManager
from logstore.cli import LazyGroup, main
from logstore.common.json_fields import camel_case, json_fields, snake_case
from replication.simulator.command.simulate import simulate
from tests.support.cases import for_each

BUILT_IN = LazyGroup.list_commands(main, click.Context(main))  # type: ignore[arg-type]
KEY = re.compile(r"[a-z][a-zA-Z0-9]*")
# Below these keys are values of their own: names of topics and logs, kinds of faults, …
OF_DATA = {"unavailable", "counters", "reached", "cells", "configs", "config"}


def keys_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield key
            if key not in OF_DATA:
                yield from keys_of(each)
    elif isinstance(value, list):
        for each in value:
            yield from keys_of(each)


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("logs")
    with LogManager([directory]) as manager:
        for number in range(2):
            log = manager.get_or_create("orders", number)
            log.append([(b"key", b"value")])
    path = next((directory / "orders-0").glob("*.log"))
    path.write_bytes(path.read_bytes()[:-1] + b"?")  # something to be found
    return directory


def command(name: str) -> click.Command:
    found = simulate if name == "simulate" else main.get_command(click.Context(main), name)
    assert found is not None
    return found


@for_each("name", sorted({*BUILT_IN, "simulate"}))
def test_every_command_takes_json(name: str) -> None:
    found = command(name)
    for each in found.commands.values() if isinstance(found, click.Group) else (found,):
        assert "--json" in {option for param in each.params for option in param.opts}, each.name


CALLS = [
    ["verify", "{}", "--json"],
    ["dump", "{}", "--json"],
    ["read", "{}", "orders", "--partition", "1", "--json"],
    ["append", "{}", "more", "--json"],
    ["recover", "{}", "--dry-run", "--json"],
    ["simulate", "--schedules", "1", "--events", "40", "--json"],
    ["simulate", "--schedules", "2", "--events", "40", "--workers", "1", "--json"],
    ["simulate", "--exhaustive", "2", "1", "1", "1", "--json"],
]


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS, ids=lambda call: " ".join(call[:1]))
def test_keys_are_spelled_in_one_way(call: list[str], log_dir: Path) -> None:
    arguments = [argument.format(log_dir) for argument in call[1:]]
    done = CliRunner().invoke(command(call[0]), arguments, input="value\n")
    assert done.exit_code in (0, 1), done.output
    try:
        told = [json.loads(done.stdout)]
    except ValueError:
        told = [json.loads(line) for line in done.stdout.splitlines()]
    keys = set(keys_of(told))
    assert keys
    assert {key for key in keys if not KEY.fullmatch(key)} == set()


class Colour(StrEnum):
    DARK_RED = "dark red"


class Point(NamedTuple):
    at_x: int


@dataclass(slots=True)
class Thing:
    log_end_offset: int = 7
    its_colour: Colour = Colour.DARK_RED
    points: list[Point] = field(default_factory=lambda: [Point(1)])
    by_name: dict[str, Point] = field(default_factory=lambda: {"my_topic": Point(2)})


def test_fields_at_every_depth_and_names_of_others_as_they_are() -> None:
    assert json_fields(Thing()) == {
        "logEndOffset": 7,
        "itsColour": "dark red",
        "points": [{"atX": 1}],
        "byName": {"my_topic": {"atX": 2}},
    }


@pytest.mark.parametrize("name", ["seed", "log_end_offset", "min_isr", "at_ms"])
def test_names_come_back(name: str) -> None:
    assert snake_case(camel_case(name)) == name
    assert snake_case(name) == name
