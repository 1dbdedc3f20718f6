"""The matrix finds a record that is lost, there twice, out of order, or somebody else's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.matrix.test_matrix import PARTITIONS, check_acked, check_read, values

pytestmark = pytest.mark.essential

COUNT = 3 * PARTITIONS


def _records() -> list[dict[str, Any]]:
    return [
        {
            "read": f"v{number}",
            "key": f"k{number}",
            "partition": number % PARTITIONS,
            "offset": number // PARTITIONS,
        }
        for number in range(COUNT)
    ]


def test_what_is_right_passes() -> None:
    check_read([*_records(), {"assigned": [1]}], values(count=COUNT))
    check_acked([{"acked": value} for value in values(count=COUNT)], values(count=COUNT))


def _lost(records: list[dict[str, Any]]) -> None:
    del records[5]


def _twice(records: list[dict[str, Any]]) -> None:
    records.append({**records[5], "offset": 99})


def _foreign(records: list[dict[str, Any]]) -> None:
    records[5]["read"] = "w5"


def _out_of_order(records: list[dict[str, Any]]) -> None:
    first, second = records[1], records[1 + PARTITIONS]
    first["offset"], second["offset"] = second["offset"], first["offset"]


def _served_out_of_order(records: list[dict[str, Any]]) -> None:
    first, second = 1, 1 + PARTITIONS
    for name in ("read", "key"):
        records[first][name], records[second][name] = records[second][name], records[first][name]


def _elsewhere(records: list[dict[str, Any]]) -> None:
    records[5]["partition"] = 0
    records[5]["offset"] = 99


def _wrong_key(records: list[dict[str, Any]]) -> None:
    records[5]["key"] = "k6"


FAULTS = (_lost, _twice, _foreign, _out_of_order, _served_out_of_order, _elsewhere, _wrong_key)


def test_what_is_wrong_is_found() -> None:
    for fault in FAULTS:
        records = _records()
        fault(records)
        with pytest.raises(AssertionError):
            check_read(records, values(count=COUNT))


def test_what_was_not_acknowledged_is_found() -> None:
    wanted = values(count=COUNT)
    acked = [{"acked": value} for value in sorted(wanted)]
    for answers in (acked[1:], [*acked, acked[0]], [*acked, {"failed": "v1", "error": "e"}]):
        with pytest.raises(AssertionError):
            check_acked(answers, wanted)
