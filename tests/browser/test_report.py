"""The HTML report as a browser shows it: measured, clicked, typed into, printed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from logstore.verify import VerifyReport
from logstore.verify.html.page import FINDINGS_MAX
from tests.browser import reports
from tests.browser.conftest import Browser

pytestmark = [pytest.mark.slow, pytest.mark.essential]

Shown = Callable[[VerifyReport], Path]

BOXES = """Array.from(document.querySelectorAll(arguments[0]), (element) => {
  const {left, right, top, bottom, width, height} = element.getBoundingClientRect();
  return {left, right, top, bottom, width, height, text: element.textContent.trim()};
})"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def boxes(browser: Browser, selector: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = browser.ask(BOXES, selector)
    return found


def overlap(one: dict[str, Any], two: dict[str, Any]) -> bool:
    """By more than the half pixel that rounding gives."""
    return (
        min(one["right"], two["right"]) - max(one["left"], two["left"]) > 0.5
        and min(one["bottom"], two["bottom"]) - max(one["top"], two["top"]) > 0.5
    )


def column(browser: Browser, number: int) -> list[str]:
    """The texts of a column of the findings that are shown."""
    texts: list[str] = browser.ask(
        "Array.from(document.querySelectorAll('#finding-rows tbody tr:not([hidden])'),"
        " (row) => row.cells[arguments[0]].textContent)",
        number,
    )
    return texts


def sort_by(browser: Browser, name: str, table: str = "#finding-rows") -> None:
    buttons = browser.driver.find_elements(By.CSS_SELECTOR, f"{table} th button")
    next(button for button in buttons if button.text.startswith(name)).click()


# -- the whole page ---------------------------------------------------------------------------


def test_it_opens_without_a_complaint_and_asks_for_nothing_else(
    browser: Browser, shown: Shown
) -> None:
    for scheme in ("light", "dark"):
        browser.look(scheme=scheme)
        path = shown(reports.cluster())
        assert browser.complaints() == []
        assert browser.requests() == [path.as_uri()]
    headings = [box["text"] for box in boxes(browser, "h2")]
    assert headings == [
        "Findings",
        "Sizes and lag",
        "Leader epochs",
        "Partitions",
        "How this was made",
    ]
    targets = browser.ask("Array.from(document.querySelectorAll('nav a'), (a) => a.hash)")
    assert all(browser.ask("!!document.querySelector(arguments[0])", hash) for hash in targets)


def test_the_policy_is_in_force(browser: Browser, shown: Shown) -> None:
    """Were it not, the first test could not tell a harmless page from a harmful one."""
    shown(reports.cluster())
    browser.ask(
        "document.body.append(Object.assign(document.createElement('script'),"
        " {textContent: 'document.title = \"owned\"'}))"
    )
    browser.ask("document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:9/x'}))")
    assert not browser.ask("document.title").startswith("owned")
    refused = "\n".join(browser.complaints())
    assert "script-src" in refused
    assert "img-src" in refused or "default-src" in refused


def test_a_hostile_report_changes_nothing_but_text(browser: Browser, shown: Shown) -> None:
    path = shown(reports.hostile())
    assert browser.ask("document.title").endswith("Not everything could be checked")
    assert browser.ask("document.querySelectorAll('script').length") == 1
    assert browser.ask("document.querySelectorAll('img, b').length") == 0
    assert browser.complaints() == []
    assert browser.requests() == [path.as_uri()]


@pytest.mark.parametrize("report", [reports.cluster, reports.hostile, VerifyReport])
def test_no_width_makes_the_page_scroll_sideways(
    browser: Browser, shown: Shown, report: Callable[[], VerifyReport]
) -> None:
    for width in (320, 400, 800, 1920):
        browser.look(width=width)
        shown(report())
        assert browser.ask(OVERFLOW) == 0, width


def test_on_a_phone_no_column_is_out_of_sight(browser: Browser, shown: Shown) -> None:
    """A row is a card there, so that no hidden column makes it high."""
    browser.look(width=390)
    shown(reports.cluster())
    cells = [box for box in boxes(browser, "#finding-rows td") if box["width"]]
    assert cells
    assert max(box["right"] for box in cells) <= 390
    assert browser.ask("document.querySelector('#finding-rows td').dataset.label") == "Severity"


FAINT = """(() => {
          const channels = (color) => color.match(/[\\d.]+/g).map(Number);
          const light = (color) => {
            const [r, g, b] = channels(color).slice(0, 3).map((c) => c / 255)
              .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const ground = (element) => {
            for (; element; element = element.parentElement) {
              const color = getComputedStyle(element).backgroundColor;
              if ((channels(color)[3] ?? 1) > 0) return color;
            }
          };
          return Array.from(document.querySelectorAll("h1, h2, h3, p, a, dt, dd, td, small, span"))
            .map((element) => {
              const [one, two] = [light(getComputedStyle(element).color), light(ground(element))];
              const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
              return [element.tagName, element.className, ratio];
            })
            .filter(([, , ratio]) => !(ratio >= 4.5));
        })()"""


def test_text_stands_out_from_its_ground(browser: Browser, shown: Shown) -> None:
    """WCAG 2.2, 1.4.3: a contrast of 4.5 to 1."""
    for scheme in ("light", "dark"):
        browser.look(scheme=scheme)
        shown(reports.cluster())
        assert browser.ask(FAINT) == [], scheme


def test_on_paper_nothing_is_cut_off(browser: Browser, shown: Shown) -> None:
    """A4 across, 12 mm of margin: 1,031 pixels."""
    browser.look(width=1031, scheme="dark", media="print")
    shown(reports.large(partitions=60, findings=90))
    assert browser.ask(OVERFLOW) == 0
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for table in ("#findings .scroll:last-of-type", "#partitions .scroll"):
        (area,), rows = boxes(browser, table), boxes(browser, f"{table} tbody tr")
        assert len(rows) >= 60
        assert rows[-1]["bottom"] <= area["bottom"] + 1
        assert rows[-1]["right"] <= area["right"] + 1
    assert not any(box["width"] for box in boxes(browser, "nav, form"))


def test_without_scripts_all_is_there(browser: Browser, shown: Shown) -> None:
    driver, report = browser.driver, reports.cluster()
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        shown(report)
        assert len(column(browser, 0)) == len(report.findings)
        assert not driver.find_element(By.CSS_SELECTOR, "form.filter").is_displayed()
        assert not driver.find_elements(By.CSS_SELECTOR, "th button")
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


# -- plots ------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [400, 1280])
def test_plots_are_as_they_should_be(browser: Browser, shown: Shown, width: int) -> None:
    """Every replica has a bar as long as its share; labels do not overlap."""
    browser.look(width=width)
    report = reports.cluster()
    shown(report)
    largest = max(partition.bytes for partition in report.partitions)
    ordered = sorted(report.partitions, key=lambda p: (p.topic, p.partition, p.broker))
    assert len(boxes(browser, "figure")) == 4
    for figure in range(1, 5):
        tracks = boxes(browser, f"figure:nth-of-type({figure}) rect.track")
        bars = boxes(browser, f"figure:nth-of-type({figure}) rect:not(.track)")
        assert len(tracks) == len(bars) == len(report.partitions)
        assert all(track["width"] > 50 and track["height"] >= 8 for track in tracks)
        assert len({track["left"] for track in tracks}) == 1
        if figure == 1:
            for partition, track, bar in zip(ordered, tracks, bars, strict=True):
                share = partition.bytes / largest
                assert bar["width"] == pytest.approx(track["width"] * share, abs=0.5)

    labels = boxes(browser, ".lanes h4, .lanes .name, .axis span, .lane text, figure .name, .value")
    labels = [label for label in labels if label["text"]]
    assert len(labels) > 100
    assert [(a, b) for a, b in combinations(labels, 2) if overlap(a, b)] == []
    plots = boxes(browser, "svg.bar, svg.lane")
    assert all(plot["width"] > 50 and plot["height"] >= 10 for plot in plots)
    beside = boxes(browser, ".lanes .name, figure .name, .value")
    assert [(a, b) for a in beside for b in plots if overlap(a, b)] == []


def test_a_finding_lies_where_its_offset_is(browser: Browser, shown: Shown) -> None:
    shown(reports.cluster())
    lane = boxes(browser, "#findings .lanes:nth-child(1 of .lanes) svg.lane")[1]
    marks = boxes(browser, "#findings .lanes:nth-child(1 of .lanes) svg.lane:nth-of-type(2) use")
    assert [mark["text"] for mark in marks][-1] == "log-checksum at offset 77,777: " + (
        "the checksum does not match"
    )
    expected = [offset / 90_000 for offset in (1_200, 40_000, 41_000, 77_777)]
    for mark, share in zip(marks, expected, strict=True):
        middle = (mark["left"] + mark["right"]) / 2
        assert middle - lane["left"] == pytest.approx(lane["width"] * share, abs=1)
        assert mark["width"] > 8


def test_epochs_show_where_replicas_parted(browser: Browser, shown: Shown) -> None:
    shown(reports.cluster())
    spans = {
        broker: [
            (box["text"], round(box["left"]), round(box["right"]))
            for box in boxes(
                browser, f"#epochs .lanes:last-of-type svg.lane:nth-of-type({broker}) [class^=tone]"
            )
        ]
        for broker in (1, 2, 3)
    }
    assert spans[1] == spans[3]
    assert [text.partition(":")[0] for text, _, _ in spans[2]] == [
        "epoch 5",
        "epoch 2",
        "epoch 1",
        "epoch 0",
    ]
    assert spans[1][2:] == spans[2][2:], "the same up to epoch 1"
    assert spans[1][1] != spans[2][1]


def test_an_epoch_stands_inside_its_span_or_not_at_all(browser: Browser, shown: Shown) -> None:
    browser.look(width=400)
    starts = (0, 500, 1_500, 3_000, 5_000, 7_500, 10_000)
    epochs = tuple((100_000 + n, a, b - 1) for n, (a, b) in enumerate(pairwise(starts)))
    shown(VerifyReport(partitions=[reports.replica("1", "orders", 0, end=10_000, epochs=epochs)]))
    spans, labels = boxes(browser, ".lane [class^=tone]"), boxes(browser, ".lane text")
    assert len(spans) == 6
    assert sorted(label["text"] for label in labels) == ["100004", "100005"]
    for label in labels:
        inside = [s for s in spans if s["left"] <= label["left"] < label["right"] <= s["right"]]
        assert [span["text"].split(":")[0] for span in inside] == [f"epoch {label['text']}"]


# -- sorting and filtering --------------------------------------------------------------------


def test_a_column_of_numbers_sorts_by_value_and_back(browser: Browser, shown: Shown) -> None:
    shown(reports.cluster())
    sort_by(browser, "Offset")
    offsets = [int(text.replace(",", "")) for text in column(browser, 6) if text]
    assert len(offsets) == 10
    assert offsets == sorted(offsets)
    assert column(browser, 6)[10:] == ["", ""], "what has none comes last"
    sort_by(browser, "Offset")
    assert [int(text.replace(",", "")) for text in column(browser, 6) if text] == offsets[::-1]
    assert column(browser, 6)[10:] == ["", ""]
    assert browser.ask("document.querySelectorAll('#finding-rows [aria-sort]').length") == 1


def test_severities_sort_by_rank_and_sizes_by_bytes(browser: Browser, shown: Shown) -> None:
    shown(reports.cluster())
    sort_by(browser, "Severity")
    sort_by(browser, "Severity")
    assert column(browser, 0) == ["info"] * 2 + ["warning"] * 3 + ["error"] * 7
    sort_by(browser, "Bytes", "#partitions")
    sizes = browser.ask(
        "Array.from(document.querySelectorAll('#partitions td[data-v]'), (td) => +td.dataset.v)"
    )
    assert len(sizes) == 12
    assert all(one <= two for one, two in pairwise(sizes))


def test_the_keyboard_sorts_too(browser: Browser, shown: Shown) -> None:
    shown(reports.cluster())
    button = browser.driver.find_elements(By.CSS_SELECTOR, "#finding-rows th button")[5]
    button.send_keys(Keys.ENTER)
    assert column(browser, 5)[0] == "140,400"
    outline = browser.ask("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_filtering_by_words_and_severities(browser: Browser, shown: Shown) -> None:
    shown(reports.cluster())
    driver = browser.driver
    output = driver.find_element(By.CSS_SELECTOR, ".filter output")
    assert output.text == "12 of 12"
    search = driver.find_element(By.CSS_SELECTOR, ".filter [type=search]")
    search.send_keys("FLIGHTS-0 checksum")
    assert column(browser, 2) == ["flights-0"] * 6
    search.send_keys(Keys.ENTER)  # would send a form that nobody holds back
    assert output.text == "6 of 12"
    assert browser.complaints() == []
    search.send_keys(Keys.ESCAPE)
    assert output.text == "12 of 12"
    driver.find_element(By.CSS_SELECTOR, ".filter [value=error]").click()
    assert set(column(browser, 0)) == {"warning", "info"}
    assert output.text == "5 of 12"


def test_a_page_filled_to_its_limits_sorts_and_filters(browser: Browser, shown: Shown) -> None:
    shown(reports.large())
    assert browser.complaints() == []
    assert len(column(browser, 0)) == FINDINGS_MAX
    sort_by(browser, "Offset")
    assert column(browser, 6)[-1] == "999"
    browser.driver.find_element(By.CSS_SELECTOR, ".filter [type=search]").send_keys("F-57")
    assert set(column(browser, 1)) == {"F-57"}
    assert browser.ask(OVERFLOW) == 0
