"""The live page of running brokers, looked at and clicked through in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoints.types import TopicPartition
from replication.embedded.cluster import Cluster
from replication.server.http import GroupSnapshot
from replication.server.http.http_server import HttpServer
from tests.browser.conftest import Browser
from tests.support.until import until

TP = TopicPartition("orders", 0)

pytestmark = [pytest.mark.slow, pytest.mark.essential]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(3, tmp_path) as cluster:
        cluster.create_topic("orders", 1)
        cluster.create_topic("_payments_", 2)
        cluster.produce("orders", b"first")
        yield cluster


@pytest.fixture
def served(cluster: Cluster) -> Iterator[HttpServer]:
    def brokers() -> list[object]:
        return [cluster.broker(broker_id) for broker_id in cluster.live_brokers]

    def groups() -> list[GroupSnapshot]:
        hostile = "<img src=x onerror=alert(1)>"
        return [
            GroupSnapshot("billing", "Stable", "consumer", 2, {TP: 1}),
            GroupSnapshot(hostile, "Empty", "consumer", 0, {}),
        ]

    with HttpServer(brokers, groups) as server:  # type: ignore[arg-type]
        yield server


class Page:
    """The page, by what a reader sees of it."""

    def __init__(self, browser: Browser, address: tuple[str, int]) -> None:
        self.browser = browser
        browser.driver.get("about:blank")
        for log in ("browser", "performance"):
            browser.driver.get_log(log)
        host, port = address
        self.url = f"http://{host}:{port}/"
        browser.driver.get(self.url)
        until(lambda: self.link() == "live", "the page is live")

    def link(self) -> str:
        return str(self.browser.ask("document.getElementById('link').textContent"))

    def rows(self, table: str) -> list[list[str]]:
        script = (
            "[...document.getElementById(arguments[0]).tBodies[0].rows]"
            ".map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
        )
        found: list[list[str]] = self.browser.ask(script, table)
        return found

    def click(self, name: str) -> None:
        self.browser.driver.find_element("id", name).click()

    def type(self, name: str, text: str) -> None:
        field = self.browser.driver.find_element("id", name)
        field.clear()
        field.send_keys(text)


def test_offsets_move_and_a_lost_leader_shows(
    browser: Browser, cluster: Cluster, served: HttpServer
) -> None:
    page = Page(browser, served.address)

    def orders() -> list[str]:
        return next(row for row in page.rows("partitions") if row[0] == "orders")

    until(lambda: "1 / 1" in orders()[5], "the first record")
    leader = cluster.leader(TP)
    assert orders()[2] == str(leader)
    assert orders()[4] == "0 1 2"
    billing = next(row for row in page.rows("groups") if row[0] == "billing")
    assert billing[3:] == ["orders", "0", "1", "1", "0"]

    for number in range(4):
        cluster.produce("orders", b"%d" % number)
    until(lambda: "5 / 5" in orders()[5], "five records")
    until(lambda: page.rows("groups")[1][7] == "4" or page.rows("groups")[0][7] == "4", "lag")

    assert leader is not None
    producer = cluster.producer(acks=1)
    for other in cluster.broker_ids:
        if other != leader:
            cluster.network.cut(other, leader)
    producer.send("orders", b"nobody else has it")
    cluster.crash(leader)
    cluster.heal()
    new = cluster.wait_for_leader(TP, not_broker=leader)
    until(lambda: orders()[2] == str(new), "another leader")
    assert len(page.rows("brokers")) == 2
    cluster.produce("orders", b"of the next leader")
    cluster.start(leader)
    until(lambda: page.rows("truncations")[0][1:4] == [str(leader), "orders", "0"], "a truncation")
    assert page.rows("truncations")[0][5:] == ["6", "5", "1"]

    assert browser.complaints() == []
    asked = {url.rpartition("/")[2] for url in browser.requests() if url.startswith("http")}
    assert {name.partition("?")[0] for name in asked} == {"", "state"}


def test_filter_pause_and_a_server_that_goes_away(
    browser: Browser, cluster: Cluster, served: HttpServer
) -> None:
    page = Page(browser, served.address)
    until(lambda: len(page.rows("partitions")) == 3, "all partitions")
    page.type("filter", "ORD")
    until(lambda: [row[0] for row in page.rows("partitions")] == ["orders"], "the filtered rows")
    page.type("filter", "nothing")
    until(lambda: page.rows("partitions") == [["No partition."]], "no row")
    page.type("filter", " ")
    until(lambda: len(page.rows("partitions")) == 3, "no filter")
    assert any(row[0].startswith("<img") for row in page.rows("groups"))  # text, not markup

    page.click("pause")
    assert page.link() == "paused"
    cluster.produce("orders", b"while nobody looks")
    browser.requests()
    # Timers of a page go off in order: the next look, were there one, comes before this one.
    browser.driver.execute_async_script("setTimeout(arguments[0], 2 * PERIOD_MS)")
    assert browser.requests() == []
    assert "1 / 1" in page.rows("partitions")[2][5]
    page.click("pause")
    until(lambda: "2 / 2" in page.rows("partitions")[2][5], "it goes on")

    served.close()
    until(lambda: page.link().startswith("no answer"), "it says that it is old")
    assert len(page.rows("partitions")) == 3


def test_it_fits_the_screen(browser: Browser, served: HttpServer) -> None:
    page = Page(browser, served.address)
    until(lambda: bool(page.rows("partitions")), "rows")
    for width in (390, 1280):
        for scheme in ("light", "dark"):
            browser.look(width=width, scheme=scheme)
            assert browser.ask("document.documentElement.scrollWidth") <= width


def test_pages_of_many_partitions(browser: Browser, cluster: Cluster, served: HttpServer) -> None:
    cluster.create_topic("many", 60)
    page = Page(browser, served.address)

    def shown() -> str:
        return str(browser.ask("document.querySelector('[data-of=partitions] span').textContent"))

    def turn(which: str) -> None:
        browser.driver.find_element("css selector", f"[aria-label='{which} partitions']").click()

    until(lambda: shown() == "1 to 50 of 63", "the first page")
    assert len(page.rows("partitions")) == 50
    turn("Later")
    until(lambda: shown() == "51 to 63 of 63", "the second page")
    assert len(page.rows("partitions")) == 13
    page.type("filter", "many")
    until(lambda: shown() == "1 to 50 of 60", "a filter begins at its first page")
    turn("Later")
    page.type("filter", "ord")
    until(lambda: len(page.rows("partitions")) == 1, "one row, and no pages")
    assert not browser.driver.find_element("css selector", "[data-of=partitions]").is_displayed()


def test_only_what_is_not_well(browser: Browser, cluster: Cluster, served: HttpServer) -> None:
    page = Page(browser, served.address)
    page.click("unwell")
    nothing = [["No partition that is not well."]]
    until(lambda: page.rows("partitions") == nothing, "all are well")
    follower = next(broker for broker in cluster.broker_ids if broker != cluster.leader(TP))
    cluster.crash(follower)
    cluster.wait_for_isr(TP, [broker for broker in cluster.broker_ids if broker != follower])
    until(lambda: "orders" in [row[0] for row in page.rows("partitions")], "one that is not")
    assert "under-replicated" in browser.ask("document.getElementById('summary').textContent")


def test_on_a_phone_a_row_is_a_card_without_gaps(browser: Browser, served: HttpServer) -> None:
    browser.look(width=390)
    page = Page(browser, served.address)
    until(lambda: len(page.rows("partitions")) == 3, "rows")
    cells = "[...document.querySelectorAll('td')].map((td) => td.getBoundingClientRect().right)"
    assert max(browser.ask(cells)) <= 390  # nothing is out of sight beside it
    assert browser.ask("document.querySelector('#partitions tr').offsetHeight") < 150
