"""A real Kafka starts on a directory of ours that was promoted, by the configuration that came with
it (X-180, X-181)."""

from __future__ import annotations

from pathlib import Path

import kafka_tools
import pytest
from broker import KafkaBroker, free_ports

from logstore.storage.memory import MemoryStorage
from replication.coordinators.transactions.state import TransactionState
from replication.mirror import Listeners, PromotionRules, promote
from tests.unit.mirror.test_promote import D, new_storage, said, tell

pytestmark = [pytest.mark.slow, pytest.mark.essential]


class PromotedBroker(KafkaBroker):
    """A broker on a log directory with its ``server.properties``."""

    def __init__(self, log_dir: Path, ports: list[int]) -> None:
        super().__init__(log_dir.parent)
        self.log_dir, self._ports = log_dir, ports

    def _write_properties(self) -> Path:
        return self.log_dir / "server.properties"


def on_disk(storage: MemoryStorage, source: str, target: Path) -> None:
    target.mkdir()
    for entry in storage.scan_dir(source):
        if entry.is_dir:
            on_disk(storage, f"{source}/{entry.name}", target / entry.name)
        else:
            (target / entry.name).write_bytes(storage.read_file(f"{source}/{entry.name}"))


@pytest.mark.parametrize("is_prepared", [True, False])
def test_kafka_starts_by_the_configuration_and_reads_what_was_committed(
    is_prepared: bool, tmp_path: Path
) -> None:
    """A commit that its coordinator wrote down, and whose markers were not written, counts; what
    was open does not; and no reader waits."""
    storage = new_storage()
    if is_prepared:
        known = said(storage)["open"]
        tell(storage, known.moved(TransactionState.PREPARE_COMMIT, known.last_update_ms + 5))
    on_disk(storage, D, tmp_path / "data")
    ports = free_ports(2)
    found = promote(tmp_path / "data", PromotionRules(listeners=Listeners("127.0.0.1", *ports)))
    assert [each.commits for each in found.endings] == [is_prepared, is_prepared]
    with PromotedBroker(tmp_path / "data", ports) as kafka:
        records = kafka_tools.consume(kafka.bootstrap, "orders", read_committed=True)
        kafka_tools.produce(
            kafka.bootstrap,
            kafka_tools.ProduceRecords(
                "orders", 4, idempotent=True, outcomes="CA", transactional_id="open"
            ),
        )
        later = kafka_tools.consume(kafka.bootstrap, "orders", read_committed=True)
    values = [record["value"] for record in records if record["partition"] == 0]
    assert values == [b"a", b"b", b"done-0", *([b"open-0"] if is_prepared else [])]
    assert len(later) == len(records) + 2
