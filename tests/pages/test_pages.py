"""The snippets that Python alone can run, and the runner itself."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from tests.pages.running import run
from tests.pages.snippets import JARS, PACKAGES, PROGRAMS, Script, own_network, scripts, scripts_of
from tests.support.cases import for_each
from tests.support.lanes import missing
from tests.support.until import until

ELSEWHERE = {"spark", "confluent-kafka", *PROGRAMS}
HERE = [s for s in scripts() if not s.why_not and not s.names & ELSEWHERE]


@pytest.mark.slow
@pytest.mark.parametrize("script", HERE, ids=[script.name for script in HERE])
def test_it_runs_twice(script: Script, tmp_path: Path) -> None:
    if script.lacks:
        missing(f"needs {script.lacks}")
    run([script], tmp_path)


def page(directory: Path, text: str) -> list[Script]:
    path = directory / "page.md"
    path.write_text(text)
    return list(scripts_of(path))


def test_what_is_on_a_page(tmp_path: Path) -> None:
    found = page(
        tmp_path,
        "# Page\n\n<!-- given: arrow, pytest[a,b]\nx = 1\n-->\n```python\nprint(x)\n```\n\n"
        "It prints:\n\n"
        "```\n1\n```\n\n<!-- given: above -->\n```python\ny = 2\n```\n\n"
        "```\nlogstore ls DIR\n```\n\n"
        "<!-- not run: it never ends -->\n```\n$ logstore serve\nready\n```\n\n"
        "```python\ndef test_it() -> None: ...\n```\n",
    )
    assert [(s.kind, s.line, s.needs, s.why_not, s.prints) for s in found] == [
        ("python", 6, {"arrow", "pytest[a,b]"}, "", "1\n"),
        ("console", 26, set(), "it never ends", None),
        ("pytest", 31, {"pytest"}, "", None),
    ]
    assert found[0].parts == [(4, "x = 1\n"), (7, "print(x)\n"), (18, "y = 2\n")]


@for_each(
    "text",
    [
        "<!-- given: arow -->\n```python\n```\n",
        "<!-- given: above -->\n```python\n```\n",
        "<!-- given: spark -->\n```json\n```\n",
        "```bash\n$ ls\n```\n",
        "```py\nprint()\n```\n",
    ],
)
def test_a_comment_that_means_nothing(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"page\.md: "):
        page(tmp_path, text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("```python\nopen('file', 'x')\n```\n", 'the second time:\n.*page.md", line 2'),
        ("```python\nprint(1)\n```\n\nIt prints:\n\n```\n2\n```\n", "the page says:\n2\n"),
        ("```\n$ echo a b\na c\n```\n", "the page says:\na c\n"),
        ("```\n$ cat file | sort\n```\n", "exit code 1"),
        ("```python\ndef test_it() -> None:\n    raise KeyError\n```\n", "1 failed"),
        ("```python\nopen('/var/lib/x/file', 'x')\n```\n", "No such file.*/root/var/lib/x/file"),
    ],
)
def test_what_fails_is_told(tmp_path: Path, text: str, reason: str) -> None:
    if text.startswith("```\n") and not own_network():
        missing("needs unshare --net")
    with pytest.raises(AssertionError, match=f"(?s){reason}"):
        run(page(tmp_path, text), tmp_path)


def is_alive(pid: str) -> bool:
    """What has ended without anybody to take notice has no words any more."""
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    return False


@pytest.mark.slow
def test_what_hangs_is_told_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, with what it has started; those behind it run."""
    monkeypatch.setattr("tests.pages.running.LIMIT_S", 2)
    starts = "import subprocess, time\nstarted = subprocess.Popen(['sleep', '1000']).pid\n"
    starts += "print(started, file=open('pid', 'w'), flush=True)\n"
    text = f"```python\n{starts}time.sleep(1000)\n```\n\n```python\nopen('ran', 'x')\n```\n"
    with pytest.raises(AssertionError, match=r"(?s)==== page:1\n.*not done within 2 s"):
        run(page(tmp_path, text), tmp_path)
    assert list(tmp_path.glob("*/home/ran"))
    (pid,) = (path.read_text() for path in tmp_path.glob("*/home/pid"))
    until(lambda: not is_alive(pid.strip()))


@pytest.mark.slow
def test_what_holds_passes(tmp_path: Path) -> None:
    text = "```\n$ echo it took 17 ms\nit took … ms\n$ test ! -e /var/lib/x\n```\n"
    (script,) = page(tmp_path, text)
    if script.lacks:
        missing(f"needs {script.lacks}")
    run([script], tmp_path)


def test_the_front_page_says_what_it_prints() -> None:
    assert [s.parts[0][1].split()[1] for s in scripts() if s.prints] == ["logstore", "replication"]


def test_what_a_page_names_is_needed() -> None:
    """No word is left that no page says."""
    assert {"pytest", "confluent-kafka"} == PACKAGES
    named = set().union(*(script.names for script in scripts()))
    assert named >= PACKAGES | PROGRAMS | JARS.keys() | {"arrow", "spark"}
    assert json.dumps([script.to_json() for script in scripts()])
