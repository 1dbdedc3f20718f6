"""A real browser, headless, that may open files and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException

from logstore.verify import VerifyReport
from logstore.verify.html import write_report
from tests.support.lanes import missing

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)


class Browser:
    """A page in the browser, and what it asked for and complained of since it was opened."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def look(self, *, width: int = 1280, scheme: str = "light", media: str = "screen") -> None:
        """Set the screen before a page is opened, or while it is shown."""
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"media": media, "features": features}
        )

    def open(self, path: Path) -> None:
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        self.driver.get(path.as_uri())

    def ask(self, script: str, *arguments: Any) -> Any:
        """The result of a JavaScript expression."""
        return self.driver.execute_script(f"return {script}", *arguments)

    def complaints(self) -> list[str]:
        """What stands in the console."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Every address that the page asked for."""
        events = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]


def start_chrome() -> webdriver.Chrome:
    """Skips, with the reason, where there is none; fails where one is required."""
    binary = next(filter(None, map(shutil.which, _BROWSERS)), None)
    program = shutil.which("chromedriver")
    if binary is None or program is None:
        missing("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    try:
        return webdriver.Chrome(options, webdriver.ChromeService(program))
    except WebDriverException as error:
        missing(f"chromium does not start: {error.msg}")


@pytest.fixture(scope="session")
def chrome() -> Iterator[webdriver.Chrome]:
    driver = start_chrome()
    yield driver
    driver.quit()


@pytest.fixture
def browser(chrome: webdriver.Chrome) -> Browser:
    browser = Browser(chrome)
    browser.look()
    return browser


@pytest.fixture
def shown(browser: Browser, tmp_path: Path) -> Callable[[VerifyReport], Path]:
    """Writes a report and opens it."""

    def show(report: VerifyReport) -> Path:
        path = tmp_path / "report.html"
        write_report(report, path)
        browser.open(path)
        return path

    return show
