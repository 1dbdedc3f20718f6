"""Logs that Apache Kafka wrote, in every format, served as they are."""

from __future__ import annotations

from pathlib import Path

from checkpoints.types import TopicPartition
from logstore.manager import LogManager
from logstore.storage.memory import MemoryStorage
from replication import serve

DATA = Path(__file__).parent / "data"
FOLDERS = sorted(DATA.glob("v*"))


def test_all_records_of_all_formats_are_there() -> None:
    """What a client reads is what the log has."""
    storage = MemoryStorage()
    for folder in FOLDERS:
        storage.make_dir(f"/kafka/{folder.name}-0")
        for path in folder.iterdir():
            storage.write_file(f"/kafka/{folder.name}-0/{path.name}", path.read_bytes())
    names = [entry.name for entry in storage.scan_dir("/kafka")]
    with serve(adopt="/kafka", read_only=True, storage=storage) as kafka:
        assert kafka.adoption is not None
        assert kafka.adoption.led == len(FOLDERS)
        served = {folder.name: kafka.read_all(folder.name)[0] for folder in FOLDERS}
    assert [entry.name for entry in storage.scan_dir("/kafka")] == names
    with LogManager(["/kafka"], storage=storage, background=False) as manager:
        for name, records in served.items():
            log = manager.logs[TopicPartition(name, 0)]
            values = [(each.offset, each.key, each.value) for each in records]
            assert values == [(each.offset, each.key, each.value) for each in log.records()], name
            assert values or name == "v2-kraft-control", name
