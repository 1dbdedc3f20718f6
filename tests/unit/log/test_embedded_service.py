"""The service of docs/embedding.md, killed again and again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from logstore.log import PartitionLog
from tests.support.until import patience, until

ROOT = Path(__file__).resolve().parents[3]
SERVICE = ROOT / "examples" / "embedded_service.py"
ORDERS = [b"order %d" % number for number in range(400)]


def begin(directory: Path, orders: Path) -> subprocess.Popen[bytes]:
    with orders.open("rb") as file:
        return subprocess.Popen([sys.executable, SERVICE, directory], stdin=file, cwd=ROOT)


@pytest.mark.slow
def test_it_survives_kill_9(tmp_path: Path) -> None:
    orders = tmp_path / "orders.txt"
    orders.write_bytes(b"\n".join(ORDERS))
    directory = tmp_path / "service"
    directory.mkdir()
    kills = 0
    for taken in (20, 90, 170, 260):
        process = begin(directory, orders)
        invoice = directory / f"{taken}.txt"
        until(lambda child=process, done=invoice: child.poll() is not None or done.exists())
        process.kill()
        kills += process.wait() == -9
    assert kills > 0
    assert begin(directory, orders).wait(patience()) == 0
    with PartitionLog.open(directory / "orders-0") as log:
        assert log.recovery_report.clean
        assert [record.value for record in log.records()] == ORDERS
        assert log.cursor("invoices").position == len(ORDERS)
    invoices = {path.name: path.read_bytes() for path in directory.glob("*.txt")}
    assert invoices == {f"{n}.txt": b"Invoice for " + order for n, order in enumerate(ORDERS)}


def test_the_page_shows_it() -> None:
    body = SERVICE.read_text().partition('"""\n\n')[2].partition("import sys\n")[2]
    assert body.strip() in (ROOT / "docs" / "embedding.md").read_text()
