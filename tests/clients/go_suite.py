"""What suites in Go have in common: one test program, built from a module of a pinned version."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.clients import toolchain
from tests.clients.suite import CaseResult, ClientSuite, Outcome

_ENDED = re.compile(r"^ *--- (PASS|FAIL|SKIP): (\S+) \((\d+\.\d+)s\)$")
_FUNCTION = re.compile(r"^func (Test\w+)\(\w+ \*testing\.T\).*?^}", re.S | re.M)
_OUTCOMES = {"PASS": Outcome.PASSED, "FAIL": Outcome.FAILED, "SKIP": Outcome.SKIPPED}


class GoSuite(ClientSuite):
    """The tests of one package that talk to a broker.

    A part of a test may be left out by itself, as ``TEST/PART``. It is a case then, and the test
    runs without it.
    """

    module: ClassVar[str]
    version: ClassVar[str]
    package: ClassVar[str] = "."
    """Below the module."""
    tags: ClassVar[str] = ""
    broker: ClassVar[re.Pattern[str]]
    """How a test of the suite gets at a broker; the others test the client alone."""
    cheap = False

    @property
    def _recipe(self) -> str:
        return f"{self.module}@v{self.version} {self.package} {self.tags}"

    def ready(self) -> bool:
        return toolchain.is_built(self.module.rpartition("/")[2], self._recipe)

    def prepare(self) -> None:
        def build(directory: Path) -> None:
            go = toolchain.tool("go")
            (directory / "go.mod").write_text("module scratch\n\ngo 1.24\n")
            package = os.path.normpath(f"{self.module}/{self.package}")
            toolchain.run([go, "get", "-t", f"{package}@v{self.version}"], directory)
            test = [go, "test", "-c", "-tags", self.tags, "-o", "program"]
            toolchain.run([*test, package], directory)
            answer = toolchain.run([go, "list", "-m", "-json", self.module], directory)
            # Tests may read files of the sources, and expect to run beside them.
            (directory / "sources").symlink_to(Path(json.loads(answer)["Dir"]) / self.package)

        name = self.module.rpartition("/")[2]
        self._built = toolchain.built(name, self._recipe, build)

    def cases(self) -> list[str]:
        found = [case for case in self.left_out() if "/" in case]
        for source in sorted((self._built / "sources").glob("*_test.go")):
            text = source.read_text()
            for function in _FUNCTION.finditer(text):
                if self.is_case(text, function.group(0)):
                    found.append(function.group(1))
        return found

    def is_case(self, source: str, function: str) -> bool:
        """Whether a test, of this source file, is one that talks to a broker."""
        return self.broker.search(function) is not None

    def environment_for(self, bootstrap: str) -> Mapping[str, str]:
        """Return the variables by which the tests find the broker."""
        raise NotImplementedError

    def run(self, cases: Sequence[str], bootstrap: str, directory: Path) -> Iterator[CaseResult]:
        missing = set(cases)
        words: list[str] = []
        parts = [case for case in self.left_out() if "/" in case and case not in missing]
        command = [self._built / "program", f"-test.run={_pattern(cases)}"]
        command += [f"-test.skip={_pattern(parts)}"] if parts else []
        command += ["-test.v", "-test.timeout=15m"]
        with (
            (directory / f"{self.name}.log").open("w") as log,
            subprocess.Popen(
                [str(word) for word in command],
                cwd=self._built / "sources",
                env={**os.environ, **self.environment_for(bootstrap)},
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


def _pattern(cases: Sequence[str]) -> str:
    return "|".join("/".join(f"^{part}$" for part in case.split("/")) for case in cases)
