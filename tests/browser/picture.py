"""The picture of ``docs/processes.md``: the page of three processes, one of them just killed.

python -m tests.browser.picture docs/_static/cluster-page.png
"""

from __future__ import annotations

import base64
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replication.common.addresses import split_address
from replication.supervisor.cluster_file import read_cluster
from tests.browser.conftest import Browser, start_chrome
from tests.support.commands import logstore
from tests.support.until import until
from tests.zookeeper.test_cluster_of_processes import CONFIG, Supervised

WIDTH, HEIGHT = 1200, 900
STATES = "[...document.querySelectorAll('#brokers td:nth-child(2)')].map((td) => td.textContent)"


@contextmanager
def running(directory: Path) -> Iterator[tuple[Supervised, tuple[str, int]]]:
    """A cluster of three with a page, five records in the topic orders, and a group that has read
    them; and the address of the page."""
    config = [f"--config={key}={value}" for key, value in CONFIG.items()]
    options = ("--engine=tree", "--listen=127.0.0.1:0", "--http=127.0.0.1:0", *config)
    with Supervised(directory, *options) as cluster:
        at = ("--bootstrap-server", cluster.bootstrap)
        logstore("topics", "create", "orders", "--partitions", "3", *at)
        for key in ("customer-1", "customer-7", "customer-8", "customer-9", "customer-12"):
            logstore("produce", "orders", "--key", key, *at, given="of an order\n")
        logstore("consume", "orders", "-e", "-q", "--group", "billing", *at)
        cluster.until_well()
        plan = read_cluster(str(directory))
        assert plan is not None
        address = split_address(plan.http)
        assert address is not None
        yield cluster, address


def kill(cluster: Supervised, broker_id: int) -> None:
    os.kill(cluster.processes[f"broker {broker_id}"]["pid"], signal.SIGKILL)


def main(path: str) -> None:
    chrome = start_chrome()
    try:
        with tempfile.TemporaryDirectory() as place, running(Path(place, "kafka")) as found:
            cluster, (host, port) = found
            browser = Browser(chrome)
            browser.look(width=WIDTH)
            chrome.get(f"http://{host}:{port}/")
            until(lambda: browser.ask(STATES) == ["running"] * 3, "all run")
            kill(cluster, 1)
            until(lambda: "no answer" in browser.ask(STATES), "one does not answer")
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
            shot = chrome.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip})
            Path(path).write_bytes(base64.b64decode(shot["data"]))
            cluster.until_well()
    finally:
        chrome.quit()


if __name__ == "__main__":
    main(sys.argv[1])
