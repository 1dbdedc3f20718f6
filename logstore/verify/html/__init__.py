"""A verification as one HTML file that needs nothing else: no network, no fonts, no plot library.

``write_report`` writes it, ``render`` gives it as text. The page names no other resource, and its
content policy forbids all of them. Scripts and styles run only with the checksums that are written
into the page, so nothing in a topic, a path or a message can become a script. Without scripts
everything is there except sorting and filtering. Needs jinja2: the extra ``report``.
"""

from __future__ import annotations

import hashlib
import os
import platform
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from checkpoints.files import OsFiles, replace_file
from logstore.common.clock import Clock, SystemClock
from logstore.common.extras import Extra, missing
from logstore.common.version import __version__

try:
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup
except ModuleNotFoundError as error:
    raise missing("the HTML report", str(error.name).partition(".")[0], Extra.REPORT) from None

from logstore.verify.common.report import VerifyReport
from logstore.verify.html import page as pages
from logstore.verify.html import plots, text

__all__ = ["render", "write_report"]

TITLE = "Verification of log directories"


def write_report(
    report: VerifyReport,
    path: str | os.PathLike[str],
    *,
    title: str = TITLE,
    rescue: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> None:
    """Replace the file ``path`` in one step; the arguments are those of `render`.

    Raises:
        OSError: the file cannot be written.
    """
    content = render(report, title=title, rescue=rescue, settings=settings, clock=clock).encode()
    replace_file(OsFiles(), os.fspath(path), content)


def render(
    report: VerifyReport,
    *,
    title: str = TITLE,
    rescue: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> str:
    """The page, of at most 1 to 3 MB whatever the report holds. It counts what is left out.

    ``rescue`` is what a rescue would bring back, in lines. "How this was made" shows ``settings``
    beside version and time: what was asked for (paths, depth) and what carried it out.
    """
    style, script = Markup(_read("report.css")), Markup(_read("report.js"))
    page = pages.Page(report)
    return (
        _templates()
        .get_template("report.html.jinja")
        .render(
            title=title,
            page=page,
            report=report,
            rescue=rescue,
            bar_plots=plots.bar_plots(page),
            finding_lanes=plots.finding_lanes(page),
            epoch_lanes=plots.epoch_lanes(page),
            epochs_max=pages.EPOCHS_MAX,
            settings=settings or {},
            version=__version__,
            python=f"{platform.python_implementation()} {platform.python_version()}",
            made_ms=(clock or SystemClock()).wall_ms(),
            style=style,
            script=script,
            style_hash=_hash(style),
            script_hash=_hash(script),
        )
    )


def _read(name: str) -> str:
    return files(__name__).joinpath(name).read_text("utf-8")


def _hash(source: str) -> str:
    """The hash by which a content security policy names an inline element."""
    return "sha256-" + b64encode(hashlib.sha256(source.encode()).digest()).decode()


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_read),
        autoescape=True,
        finalize=text.visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": text.count,
        "moment": text.moment,
        "percent": "{:.2f}%".format,
        "plural": text.plural,
        "size": text.size,
    }
    return environment
