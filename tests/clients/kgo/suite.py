"""franz-go's own tests of its client ``kgo``, as one compiled test program."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.clients import servers, toolchain
from tests.clients.suite import CaseResult, ClientSuite, Outcome

VERSION = "1.22.2"
MODULE = "github.com/twmb/franz-go"
_ENDED = re.compile(r"^--- (PASS|FAIL|SKIP): (\w+) \((\d+\.\d+)s\)$")
_FUNCTION = re.compile(r"^func (Test\w+)\(t \*testing\.T\).*?^}", re.S | re.M)
# How a test of the suite gets at a broker; the others test the client alone.
_BROKER = re.compile(r"tmpTopic|getSeedBrokers|newTestClient|testClientOpts|tmpGroup|adm\(\)|scram")
_OUTCOMES = {"PASS": Outcome.PASSED, "FAIL": Outcome.FAILED, "SKIP": Outcome.SKIPPED}


class KgoSuite(ClientSuite):
    """Groups that move data in and out exactly once, transactions, and the client's old issues."""

    name = "kgo"
    pinned = f"franz-go {VERSION}, package kgo"
    quick = ("TestPing", "TestClient_Produce", "TestGroupSimple", "TestIssue865")
    most_left_out = 0
    cheap = False
    environment: ClassVar[Mapping[str, str]] = {}

    @property
    def _recipe(self) -> str:
        return f"{MODULE}@v{VERSION}"

    def ready(self) -> bool:
        return toolchain.is_built("kgo", self._recipe)

    def prepare(self) -> None:
        def build(directory: Path) -> None:
            go = toolchain.tool("go")
            (directory / "go.mod").write_text("module scratch\n\ngo 1.24\n")
            package = f"{MODULE}/pkg/kgo"
            toolchain.run([go, "get", "-t", f"{package}@v{VERSION}"], directory)
            toolchain.run([go, "test", "-c", "-o", "kgo.test", package], directory)
            answer = toolchain.run([go, "list", "-m", "-json", MODULE], directory)
            # One test reads the sources, and expects to run beside them.
            (directory / "sources").symlink_to(Path(json.loads(answer)["Dir"]) / "pkg" / "kgo")

        self._built = toolchain.built("kgo", self._recipe, build)

    def cases(self) -> list[str]:
        found = []
        for source in sorted((self._built / "sources").glob("*_test.go")):
            for function in _FUNCTION.finditer(source.read_text()):
                if _BROKER.search(function.group(0)):
                    found.append(function.group(1))
        return found

    def run(self, cases: Sequence[str], bootstrap: str, directory: Path) -> Iterator[CaseResult]:
        environment = {
            **os.environ,
            "KGO_SEEDS": bootstrap,
            "KGO_TEST_RF": "1",
            "KGO_TEST_RECORDS": "3000",
            "KGO_TEST_MAX_TOPIC_PARTS": "3",
            **self.environment,
        }
        if self.has_login:
            environment["KGO_TEST_SCRAM_SEEDS"] = bootstrap
        missing = set(cases)
        words: list[str] = []
        command = [self._built / "kgo.test", f"-test.run=^({'|'.join(cases)})$"]
        command += ["-test.v", "-test.timeout=15m"]
        with (
            (directory / f"{self.name}.log").open("w") as log,
            subprocess.Popen(
                [str(word) for word in command],
                cwd=self._built / "sources",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                words = [*words[-30:], line]
                ended = _ENDED.match(line)
                if ended is None or ended.group(2) not in missing:
                    continue
                missing.discard(ended.group(2))
                outcome = _OUTCOMES[ended.group(1)]
                detail = "" if outcome is Outcome.PASSED else "".join(words)
                yield CaseResult(ended.group(2), outcome, float(ended.group(3)), detail)
        for case in sorted(missing):
            yield CaseResult(case, Outcome.FAILED, 0.0, "did not end:\n" + "".join(words))


class KgoChaosSuite(KgoSuite):
    """The same tests on connections that are slow and break."""

    name = "kgo-chaos"
    environment: ClassVar[Mapping[str, str]] = {"KGO_TEST_CHAOS": "1"}


class KgoReplicatedSuite(KgoSuite):
    """The same tests on three brokers, with topics of three replicas."""

    name = "kgo-replicated"
    quick = ()
    brokers = 3
    environment: ClassVar[Mapping[str, str]] = {"KGO_TEST_RF": "3"}


class KgoScramSuite(KgoSuite):
    """The tests of logins, which the other suites skip; the rest of kgo logs in nowhere."""

    name = "kgo-scram"
    quick = ("TestSCRAMAuth", "TestSCRAMAuthBadCredentials")
    has_login = True
    environment: ClassVar[Mapping[str, str]] = {
        "KGO_TEST_SCRAM": f"{servers.USER}:{servers.PASSWORD}:512"
    }

    def cases(self) -> list[str]:
        return [case for case in super().cases() if "SCRAM" in case]
