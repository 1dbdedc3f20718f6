"""``@pytest.mark.unstable(reason=…, since=…)``: a test that is known to fail by luck.

Its failure decides nothing, and each run names it at its end, so that it is not forgotten.
"""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    mark = item.get_closest_marker("unstable")
    if mark is not None:
        report.unstable = "since {since}: {reason}".format(**mark.kwargs)
        if report.failed and report.when == "call":
            report.outcome, report.wasxfail = "skipped", f"unstable {report.unstable}"
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    known = {
        report.nodeid: report.unstable
        for reports in terminalreporter.stats.values()
        for report in reports
        if hasattr(report, "unstable")
    }
    if known:
        terminalreporter.section("unstable")
        for name, reason in sorted(known.items()):
            terminalreporter.write_line(f"{name} {reason}")
