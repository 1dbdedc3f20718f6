"""The page of a cluster of processes, while one of them is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.conftest import Browser
from tests.browser.picture import kill, running
from tests.browser.test_live import Page
from tests.support.until import until

pytestmark = [pytest.mark.slow, pytest.mark.essential]


def test_a_broker_that_is_killed_shows_and_comes_back(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path / "kafka") as (cluster, address):
        page = Page(browser, address)

        def brokers() -> dict[str, list[str]]:
            return {row[0]: row[1:] for row in page.rows("brokers")}

        def orders() -> list[str]:
            return next(row for row in page.rows("partitions") if row[:2] == ["orders", "0"])

        assert [row[0] for row in brokers().values()] == ["running"] * 3
        until(lambda: orders()[5].count("1 / 1") == 3, "the record, from the log of each broker")
        assert page.rows("groups")[0][:3] == ["billing", "Empty", "0"]
        leader = orders()[2]
        kill(cluster, int(leader))
        until(lambda: brokers()[leader][0] == "no answer", "one does not answer")
        assert brokers()[leader][2:] == [""] * 5
        assert page.link() == "live"
        until(lambda: orders()[2] not in (leader, "none"), "another one leads")
        until(lambda: brokers()[leader][0] == "running", "it was started again")
        until(lambda: orders()[4] == "0 1 2" and orders()[5].count("1 / 1") == 3, "it is in sync")
        cluster.ask("add", "3")
        until(lambda: brokers().get("3", [""])[0] == "running", "a further broker")
        assert browser.complaints() == []
