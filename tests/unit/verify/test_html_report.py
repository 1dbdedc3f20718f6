"""The HTML report as text: what it says, what it must never contain, how large it may become."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from logstore.testing import ManualClock
from logstore.verify import Finding, PartitionReport, Severity, VerifyReport
from logstore.verify.html import page as pages
from logstore.verify.html import plots, render, text, write_report
from logstore.verify.html.page import Page
from tests.browser import reports
from tests.support.cases import for_each


class _Elements(HTMLParser):
    """All tags with their attributes, and the text of the page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def words(html: str) -> str:
    return " ".join(" ".join(_Elements(html).text).split())


def rows_of(html: str) -> int:
    """The findings that have a row."""
    table = html.partition('id="finding-rows"')[2].partition("</table>")[0]
    return table.count("<tr>") - 1


# -- nothing from outside, nothing of a stranger's --------------------------------------------


def test_it_refers_to_nothing_outside_itself() -> None:
    html = render(reports.cluster())
    for tag, attributes in _Elements(html).tags:
        assert tag not in {"img", "link", "iframe", "object", "embed", "base"}
        assert not attributes.keys() & {"src", "style", "srcdoc"}
        assert (attributes.get("href") or "#").startswith("#"), attributes
    assert "http:" not in html
    assert "https:" not in html
    assert "url(" not in html


def test_only_its_own_script_and_style_may_run() -> None:
    html = render(reports.cluster())
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        (source,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_markup_in_names_and_messages_stays_text() -> None:
    plain, hostile = reports.cluster(), reports.hostile()
    html = render(hostile, title="<b>x</b>", settings={"<i>": "<u>"})
    tags = {tag for tag, _ in _Elements(html).tags}
    assert tags <= {tag for tag, _ in _Elements(render(plain)).tags} | {"ul", "li"}
    assert sum(tag == "script" for tag, _ in _Elements(html).tags) == 1
    assert "onerror" not in {name for _, attributes in _Elements(html).tags for name in attributes}


def test_characters_that_deceive_or_cannot_be_written_are_escapes() -> None:
    html = render(reports.hostile())
    html.encode()
    assert r"\udcff\u202e.log" in html
    assert r"\x00\n\x1b[31m" in html


def test_a_secret_in_a_uri_is_not_passed_on() -> None:
    directory = "s3://key:secret@bucket/data/orders-0"
    report = VerifyReport(
        [Finding(Severity.ERROR, "log-checksum", f"{directory}/0.log", f"read from {directory}")],
        [PartitionReport(directory)],
        [f"{directory}: no access"],
    )
    html = render(report, settings={"Paths": directory})
    assert "secret" not in html
    assert "s3://…@bucket/data/" in html


# -- what it says -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("report", "headline"),
    [
        (VerifyReport(files=3), "Clean"),
        (VerifyReport(), "Nothing was there to check"),
        (VerifyReport([Finding(Severity.INFO, "leftover", "x", "")], files=1), "Clean"),
        (VerifyReport([Finding(Severity.WARNING, "file-name", "x", "")]), "Warnings were found"),
        (VerifyReport([Finding(Severity.ERROR, "log-checksum", "x", "")]), "Errors were found"),
        (
            VerifyReport([Finding(Severity.ERROR, "log-checksum", "x", "")], unusable=["y: gone"]),
            "Not everything could be checked",
        ),
    ],
)
def test_the_verdict(report: VerifyReport, headline: str) -> None:
    assert f'<p class="headline">{headline}</p>' in render(report)


def test_what_was_not_checked_stands_before_all_findings() -> None:
    report = reports.cluster()
    report.unusable = ["/data/broker-4: permission denied"]
    html = render(report)
    assert html.index("/data/broker-4: permission denied") < html.index('id="findings"')
    assert "all else on this page is about the rest" in words(html)


def test_suppressed_findings_are_counted() -> None:
    assert "and 17 more in the same files, which were only counted" in words(
        render(reports.cluster())
    )


def test_every_finding_has_a_row_and_every_replica_too() -> None:
    report = reports.cluster()
    html = render(report)
    assert rows_of(html) == len(report.findings)
    for finding in report.findings:
        assert finding.message in html
    for partition in report.partitions:
        assert partition.directory in html


def test_how_it_was_made() -> None:
    clock = ManualClock(reports.MADE_MS)
    said = words(render(VerifyReport(), settings={"Depth": "headers only"}, clock=clock))
    assert "Made 2023-11-14 22:13:20 UTC" in said
    assert "Depth headers only" in said
    assert "logstore 0." in said


def test_the_same_report_gives_the_same_page() -> None:
    clock = ManualClock(reports.MADE_MS)
    assert render(reports.cluster(), clock=clock) == render(reports.cluster(), clock=clock)


def test_a_file_is_named_by_what_its_row_does_not_tell_already() -> None:
    page = Page(reports.cluster())
    files = {page.file_of(finding) for finding in page.findings}
    assert files == {
        "00000000000000000000.log",
        "00000000000000040000.timeindex",
        "leader-epoch-checkpoint",
        "broker-3/meta.properties",
    }


def test_a_file_of_two_copies_under_one_label_has_its_directory() -> None:
    """Two disks of one broker, or two partition directories that stand alone."""
    held = PartitionReport("/a/orders-0", "orders", 0)
    finding = Finding(Severity.ERROR, "log-checksum", "/b/orders-0/0.log", "", "orders", 0)
    page = Page(VerifyReport([finding], [held, replace(held, directory="/b/orders-0")]))
    assert page.file_of(finding) == "/b/orders-0/0.log"


def test_findings_reach_their_replica_behind_the_query_of_a_uri() -> None:
    query = "?endpoint_override=127.0.0.1"
    held = PartitionReport(f"s3://bucket/orders-0{query}", "orders", 0)
    finding = Finding(Severity.ERROR, "log-checksum", f"s3://bucket/orders-0/0.log{query}", "")
    assert Page(VerifyReport([finding], [held])).replicas[0].errors == 1


# -- bounds -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_huge_report_is_a_page_of_bounded_size_that_counts_what_it_leaves_out() -> None:
    html = render(reports.large(partitions=5_000, findings=10_000))
    assert len(html.encode()) < 3_000_000
    assert rows_of(html) == 3_000
    assert "3,000 of 10,000 findings are shown" in html
    assert "1,000 of 5,000 replicas are shown" in html
    assert "60 of 5,000 replicas are shown" in html


def test_findings_beyond_the_limit_are_the_lesser_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "FINDINGS_MAX", 8)
    report = reports.cluster()
    html = render(report)
    assert rows_of(html) == 8
    assert f"8 of {len(report.findings)} findings are shown" in words(html)
    assert Page(report).findings[-1].severity is Severity.WARNING
    assert sum(row.count for row in Page(report).rules) == len(report.findings)


def test_one_bad_file_does_not_hide_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "FINDINGS_MAX", 3)
    worse = [Finding(Severity.ERROR, "log-checksum", "/a/0.log", "", position=n) for n in range(5)]
    bad = Finding(Severity.ERROR, "log-checksum", "/b/0.log", "", position=7)
    page = Page(VerifyReport([*worse, bad]))
    assert page.findings == [*worse[:2], bad]


def test_the_replicas_left_out_are_the_sound_and_small_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "PLOTTED_MAX", 4)
    shown = [(r.name, r.partition.broker) for r in Page(reports.cluster()).plotted]
    assert shown == [("flights-0", "2"), ("flights-1", "3"), ("orders-0", "1"), ("payments-0", "2")]


def test_a_thousand_findings_in_one_place_are_one_mark() -> None:
    report = VerifyReport(partitions=[reports.replica("1", "orders", 0, end=1_000_000)])
    report.findings = [
        reports.finding(Severity.ERROR, "log-checksum", "1", "orders", 0, offset, "")
        for offset in range(500_000, 501_000)
    ]
    (partition,) = plots.finding_lanes(Page(report))
    (mark,) = partition.lanes[0].marks
    assert mark.text == "1,000 errors, offsets 500,000 to 500,999"
    assert mark.x == 50


def test_a_thousand_epochs_are_no_more_spans_than_the_eye_can_tell_apart() -> None:
    epochs = tuple((n, n * 10, n * 10 + 9) for n in range(1_000))
    held = reports.replica("1", "orders", 0, end=10_000, epochs=epochs)
    (partition,) = plots.epoch_lanes(Page(VerifyReport(partitions=[held])))
    spans = partition.lanes[0].spans
    assert len(spans) == 200
    assert spans[0].text == "epochs 0 to 4: offsets 0 to 49"


# -- plots ------------------------------------------------------------------------------------


def bars(page: Page, title: str) -> list[str]:
    (plot,) = [plot for plot in plots.bar_plots(page) if plot.title == title]
    assert len(plot.bars) == len(page.plotted)
    return [bar.text for bar in plot.bars]


def test_lag_is_counted_from_the_longest_replica() -> None:
    page = Page(reports.cluster())
    names = [(r.name, r.partition.broker) for r in page.plotted]
    lags = dict(zip(names, bars(page, "Lag"), strict=True))
    assert lags.pop(("flights-1", "3")) == "7,000"
    assert set(lags.values()) == {"0"}
    assert set(bars(page, "Not committed")) == {"25"}


def test_a_copy_without_another_has_no_lag_and_none_without_a_high_watermark() -> None:
    report = reports.cluster()
    report.partitions.append(replace(reports.replica("1", "alone", 0), high_watermark=-1))
    page = Page(report)
    assert bars(page, "Lag")[0] == "only copy"
    assert bars(page, "Not committed")[0] == "not known"
    lone = Page(VerifyReport(partitions=[PartitionReport("/data/x-0", "x", 0)]))
    assert [plot.title for plot in plots.bar_plots(lone)] == ["Bytes", "Records"]


def test_parts_of_one_directory_are_not_replicas_of_each_other() -> None:
    """Single segments on the command line: two reports of one partition directory."""
    one = reports.replica("1", "orders", 0, end=100)
    page = Page(VerifyReport(partitions=[one, reports.replica("1", "orders", 0, end=200)]))
    assert [replica.lag for replica in page.replicas] == [-1, -1]


def test_bars_are_in_proportion_to_the_longest() -> None:
    sizes = [reports.replica("1", "orders", n, end=end) for n, end in enumerate((1_000, 250))]
    plot = list(plots.bar_plots(Page(VerifyReport(partitions=sizes))))[1]
    assert [(bar.length, bar.text) for bar in plot.bars] == [(100, "1,000"), (25, "250")]


def test_replicas_of_a_partition_share_an_axis() -> None:
    lanes = plots.epoch_lanes(Page(reports.cluster()))[1]
    assert (lanes.name, lanes.axis) == ("flights-1", (0, 61_000))
    assert [round(lane.width) for lane in lanes.lanes] == [100, 100, 89]


def test_an_offset_beyond_the_log_stands_at_the_edge_and_tells_itself() -> None:
    report = VerifyReport(partitions=[reports.replica("1", "orders", 0, end=1_000)])
    report.findings = [
        reports.finding(Severity.ERROR, "log-base-offset", "1", "orders", 0, 2**62, "base offset")
    ]
    (mark,) = plots.finding_lanes(Page(report))[0].lanes[0].marks
    assert mark.x == 100
    assert mark.text == f"log-base-offset at offset {2**62:,}: base offset"


def test_a_finding_without_an_offset_stands_at_its_segment_or_is_counted() -> None:
    report = VerifyReport(partitions=[reports.replica("1", "orders", 0, end=1_000)])
    lost = reports.finding(Severity.ERROR, "log-checksum", "1", "orders", 0, -1, "")
    report.findings = [lost, replace(lost, segment_base=500)]
    (partition,) = plots.finding_lanes(Page(report))
    assert [mark.x for mark in partition.lanes[0].marks] == [50]
    assert "Without a place in a log: 1 finding." in words(render(report))
    report.findings = [lost, Finding(Severity.WARNING, "meta-missing", "/data/meta.properties", "")]
    assert plots.finding_lanes(Page(report)) == []
    assert Page(report).unplaced == 2


def test_a_narrow_epoch_is_not_swallowed_by_its_wide_neighbours() -> None:
    epochs = ((0, 0, 49_999), (1, 50_000, 50_000), (2, 50_001, 99_999))
    held = reports.replica("1", "orders", 0, end=100_000, epochs=epochs)
    (partition,) = plots.epoch_lanes(Page(VerifyReport(partitions=[held])))
    spans = partition.lanes[0].spans
    assert [span.text.partition(":")[0] for span in spans] == ["epoch 0", "epoch 1", "epoch 2"]
    assert spans[1].width == 0.5
    assert [span.label for span in spans] == ["0", "", "2"]


def test_an_empty_partition_has_a_place_too() -> None:
    held = PartitionReport("/data/orders-0", "orders", 0)
    report = VerifyReport(
        [Finding(Severity.WARNING, "epochs-start", "/data/orders-0/x", "", offset=0)], [held]
    )
    assert plots.finding_lanes(Page(report))[0].lanes[0].marks[0].x == 0
    assert "orders-0" in render(report)


# -- numbers, time ----------------------------------------------------------------------------


@for_each(
    "value, said",
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_024, "1.00 KiB"),
        (10_230, "9.99 KiB"),
        (10_239, "10.0 KiB"),
        (102_399, "100 KiB"),
        (1 << 20, "1.00 MiB"),
        (2**63 - 1, "8.00 EiB"),
    ],
)
def test_sizes_have_three_digits(value: int, said: str) -> None:
    assert text.size(value) == said


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [
        (-1, ""),
        (0, "1970-01-01 00:00:00"),
        (1_700_000_000_999, "2023-11-14 22:13:20"),
        (2**63 - 1, "9223372036854775807 ms"),
        (-(2**63), "-9223372036854775808 ms"),
    ],
)
def test_times_that_no_calendar_knows(milliseconds: int, said: str) -> None:
    """A record's timestamp is any 64-bit number."""
    assert text.moment(milliseconds) == said


# -- writing ----------------------------------------------------------------------------------


def test_the_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(reports.hostile(), path, title="Mine")
    assert path.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert "<title>Mine: " in path.read_text("utf-8")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write_report(VerifyReport(), tmp_path / "nowhere" / "report.html")
