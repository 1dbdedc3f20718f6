"""kafka-python's integration tests, which its source distribution carries."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar
from xml.etree import ElementTree

from tests.clients import toolchain
from tests.clients.suite import CaseResult, ClientSuite, Outcome

VERSION = "3.0.12"
PYTEST = ("pytest==8.4.2", "pytest-timeout==2.4.0", "mock==5.2.0")
CODECS = ("python-snappy==0.7.3", "lz4==4.4.4", "zstandard==0.25.0")
KAFKA_VERSION = "4.3.1"  # what the tests take the broker for
FILES = ("admin", "consumer", "producer")  # TLS and SASL want brokers that the suite starts itself
TIMEOUT_S = 900
_SERVICE = """
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def dump_logs(self):
        pass


class SpawnedService:
    pass
"""


class KafkaPythonSuite(ClientSuite):
    """Admin, consumer, groups, idempotence and transactions of the pure Python client."""

    name = "kafka-python"
    pinned = f"kafka-python {VERSION}, test/integration"
    quick = (
        "test_consumer_integration.py::test_kafka_consumer",
        "test_admin_integration.py::test_list_partition_offsets",
        "test_producer_integration.py::test_idempotent_producer",
    )
    most_left_out = 3
    cheap = True
    settings: ClassVar[Mapping[str, str | int]] = {"group.min.session.timeout.ms": 1000}

    @property
    def _recipe(self) -> str:
        return "\n".join((VERSION, *PYTEST, *CODECS))

    def ready(self) -> bool:
        return toolchain.is_built("kafka-python", self._recipe)

    def prepare(self) -> None:
        python = toolchain.python_with(*PYTEST, *CODECS)

        def build(directory: Path) -> None:
            pip = [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            only = ["--no-deps", "--no-binary", ":all:"]
            toolchain.run([*pip, *only, "-d", directory, f"kafka-python=={VERSION}"], directory)
            (archive,) = directory.glob("kafka*python-*.tar.gz")
            with tarfile.open(archive) as packed:
                packed.extractall(directory, filter="data")
            (unpacked,) = directory.glob("kafka*python-*/")
            unpacked.rename(directory / "sources")
            # The archive lacks two files. Without the first Python's own package ``test`` wins;
            # the second starts brokers, which no test does whose broker runs already.
            (directory / "sources/test/__init__.py").touch()
            (directory / "sources/test/service.py").write_text(_SERVICE)

        self._python = python
        self._sources = toolchain.built("kafka-python", self._recipe, build) / "sources"

    def cases(self) -> list[str]:
        files = [f"test/integration/test_{name}_integration.py" for name in FILES]
        listed = toolchain.run(
            [self._python, "-m", "pytest", "-q", "--collect-only", *files],
            self._sources,
            environment={"KAFKA_VERSION": KAFKA_VERSION, "KAFKA_URI": "kafka://127.0.0.1:1"},
        )
        return [
            line.removeprefix("test/integration/")
            for line in listed.splitlines()
            if re.match(r"test/integration/\S+\.py::", line)
        ]

    def run(self, cases: Sequence[str], bootstrap: str, directory: Path) -> Iterator[CaseResult]:
        report = directory / "kafka-python.xml"
        selected = [f"test/integration/{case}" for case in cases]
        with (directory / "kafka-python.log").open("wb") as log:
            process = subprocess.Popen(
                [self._python, "-m", "pytest", "-v", f"--junit-xml={report}", *selected],
                cwd=self._sources,
                env={
                    **os.environ,
                    "KAFKA_VERSION": KAFKA_VERSION,
                    "KAFKA_URI": f"kafka://{bootstrap}",
                    "KAFKA_ROOT": str(directory),  # looked for, and not used
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        missing = set(cases)
        if report.exists():
            for element in ElementTree.parse(report).iter("testcase"):
                module = element.attrib["classname"].rpartition(".")[2]
                case = f"{module}.py::{element.attrib['name']}"
                missing.discard(case)
                yield _result(case, element)
        for case in sorted(missing):
            yield CaseResult(case, Outcome.FAILED, 0.0, f"no result, see {log.name}")


def _result(case: str, element: ElementTree.Element) -> CaseResult:
    seconds = float(element.attrib.get("time", 0))
    for tag, outcome in (
        ("failure", Outcome.FAILED),
        ("error", Outcome.FAILED),
        ("skipped", Outcome.SKIPPED),
    ):
        found = element.find(tag)
        if found is not None:
            words = f"{found.attrib.get('message', '')}\n{found.text or ''}"
            return CaseResult(case, outcome, seconds, words[-3000:])
    return CaseResult(case, Outcome.PASSED, seconds)
