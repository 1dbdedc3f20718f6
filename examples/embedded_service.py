"""A service in one process that may be killed at any moment: orders in, one invoice for each out.

    python examples/embedded_service.py DIRECTORY < orders.txt

The same command goes on where it was killed: no order is lost or taken twice, and no invoice is
missing. The last one before a kill may be written again; here its number replaces it.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from logstore import PartitionLog


def take_orders(log: PartitionLog, lines: list[bytes]) -> None:
    """Each line of the input once, however often this starts again: the log counts them."""
    producer = log.producer("orders")
    for number in range(producer.next_sequence, len(lines)):
        producer.append([(None, lines[number])], sync=True)  # on the disk when it returns


def write_invoices(log: PartitionLog, directory: Path, until: int) -> None:
    cursor = log.cursor("invoices")
    while cursor.position < until:
        for order in cursor.poll(100, timeout=None):  # waits for the next order
            (directory / f"{order.offset}.txt").write_bytes(b"Invoice for " + (order.value or b""))
        cursor.commit()


def main(directory: Path) -> None:
    lines = sys.stdin.buffer.read().splitlines()
    with PartitionLog.open(directory / "orders-0") as log:  # recovers after a kill
        arguments = (log, directory, len(lines))
        invoices = threading.Thread(target=write_invoices, args=arguments)
        invoices.start()
        take_orders(log, lines)
        invoices.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
