"""librdkafka's own test program, which the crate ``rdkafka-sys`` carries in its sources."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.clients import toolchain
from tests.clients.suite import CaseResult, ClientSuite, Outcome

CRATE_VERSION = "4.10.0"
CASE_TIMEOUT_S = 240
_REGISTERED = re.compile(
    r"^\s+_TEST\((\w+),(.*?)(?=^\s+_TEST\(|^#|^\s+/\*|^\s+\{NULL\})", re.M | re.S
)
_FLAG = re.compile(r"\bTEST_F_\w+")
_SCENARIO = re.compile(r'\.scenario = "([\w,]+)"')
_SUMMARY = re.compile(r"^\|\S* (\w+) +\| +(PASSED|FAILED|SKIPPED) +\| +(\d+\.\d+)s", re.M)
_OUTCOMES = {name.upper(): outcome for name, outcome in Outcome._value2member_map_.items()}
# Parts of one case that are run by themselves too, since others of it need ACLs.
_ADMIN = "0081_admin"
_ADMIN_PARTS = (
    "CreateTopics",
    "DeleteTopics",
    "CreatePartitions",
    "AlterConfigs",
    "DescribeConfigs",
    "DeleteRecords",
    "ListConsumerGroups",
    "DescribeConsumerGroups",
    "DeleteGroups",
    "ConsumerGroupOffsets",
    "ListOffsets",
    "unclean_destroy",
)
_SCRIPTS = {"kafka-topics.sh": "org.apache.kafka.tools.TopicCommand"}
# Without a broker, known by their authors to fail, or by hand.
_NOT_WANTED = {"TEST_F_LOCAL", "TEST_F_KNOWN_ISSUE", "TEST_F_MANUAL"}
_CARGO = f"""[package]
name = "scratch"
version = "0.0.0"
edition = "2021"
[lib]
path = "lib.rs"
[dependencies]
rdkafka-sys = "={CRATE_VERSION}"
"""
_FEATURES_OFF = ("sasl", "curl", "gssapi", "zstd", "lz4-ext", "regex-ext")


class LibrdkafkaSuite(ClientSuite):
    """Producers, consumers, groups, offsets, transactions and admin of the C client."""

    name = "librdkafka"
    pinned = "librdkafka 2.12.1 (rdkafka-sys 4.10.0)"
    quick = ("0012_produce_consume", "0073_headers", "0031_get_offsets", "0013_null_msgs")
    most_left_out = 7
    cheap = False
    brokers = 3
    scenario: ClassVar[str] = "default"

    @property
    def _recipe(self) -> str:
        return _CARGO + " ".join(_FEATURES_OFF)

    def ready(self) -> bool:
        return toolchain.is_built("librdkafka", self._recipe)

    def prepare(self) -> None:
        def build(directory: Path) -> None:
            cargo, make = toolchain.tool("cargo"), toolchain.tool("make")
            toolchain.tool("gcc")
            crate = directory / "crate"
            crate.mkdir()
            (crate / "Cargo.toml").write_text(_CARGO)
            (crate / "lib.rs").touch()
            toolchain.run([cargo, "vendor", "--quiet", "--versioned-dirs", "vendor"], crate)
            (vendored,) = (crate / "vendor").glob("rdkafka-sys-*")
            source = directory / "librdkafka"
            shutil.copytree(vendored / "librdkafka", source)
            shutil.rmtree(crate)
            # Crates keep no modes of files.
            for script in [source / "configure", *source.rglob("*.sh"), *source.rglob("*.py")]:
                script.chmod(0o755)
            off = [f"--disable-{feature}" for feature in _FEATURES_OFF]
            toolchain.run(["./configure", *off], source)
            toolchain.run([make, "-j2", "libs"], source)
            toolchain.run([make, "-j2", "-C", "tests", "build"], source)

        self._source = toolchain.built("librdkafka", self._recipe, build) / "librdkafka"

    def cases(self) -> list[str]:
        text = (self._source / "tests" / "test.c").read_text()
        names = []
        for name, rest in _REGISTERED.findall(text):
            found = _SCENARIO.search(rest)
            scenarios = (found.group(1) if found else "default").split(",")
            if self.scenario in scenarios and not _NOT_WANTED & set(_FLAG.findall(rest)):
                names.append(name)
                if name == _ADMIN:
                    names += [f"{_ADMIN}/{part}" for part in _ADMIN_PARTS]
        return names

    def run(self, cases: Sequence[str], bootstrap: str, directory: Path) -> Iterator[CaseResult]:
        settings = directory / "librdkafka.conf"
        settings.write_text(f"bootstrap.servers={bootstrap}\ntest.topic.random=true\n")
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": f"{self._source / 'src'}:{self._source / 'src-cpp'}",
            "RDKAFKA_TEST_CONF": str(settings),
            "TEST_KAFKA_VERSION": "4.3.1",
            "BROKERS": bootstrap,
            "KAFKA_PATH": str(_kafka_path(directory)),
        }
        # One program run for each number: a test that hangs or aborts takes no other with it.
        whole = [case for case in cases if "/" not in case]
        for number in sorted({case[:4] for case in whole}):
            wanted = {case for case in whole if case.startswith(number)}
            yield from self._run_one(wanted, {**environment, "TESTS": number}, directory / number)
        for case in sorted(set(cases) - set(whole)):
            number, part = case[:4], case.partition("/")[2]
            only = {**environment, "TESTS": number, "SUBTESTS": part}
            (result,) = self._run_one({_ADMIN}, only, directory / f"{number}-{part}")
            log = (directory / f"{number}-{part}.log").read_text()
            if part not in log:
                result = CaseResult(case, Outcome.FAILED, 0.0, "no such part was run")
            yield dataclasses.replace(result, case=case)

    def _run_one(
        self, wanted: set[str], environment: Mapping[str, str], log: Path
    ) -> Iterator[CaseResult]:
        began = time.monotonic()
        texts = self._output(environment)
        log.with_suffix(".log").write_text(texts)
        outcomes = {
            name: (_OUTCOMES[word], float(seconds))
            for name, word, seconds in _SUMMARY.findall(texts)
        }
        for case in sorted(wanted):
            if case not in outcomes:
                seconds = time.monotonic() - began
                yield CaseResult(case, Outcome.FAILED, seconds, "did not end:\n" + texts[-3000:])
                continue
            outcome, seconds = outcomes[case]
            detail = "" if outcome is Outcome.PASSED else texts[-3000:]
            yield CaseResult(case, outcome, seconds, detail)

    def _output(self, environment: Mapping[str, str]) -> str:
        try:
            result = subprocess.run(
                ["./test-runner", "-p1", "-Q", "-L", "-K", "-s", self.scenario],
                cwd=self._source / "tests",
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=CASE_TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            said = error.stdout or b""
            return said.decode(errors="replace") if isinstance(said, bytes) else said
        return result.stdout + result.stderr


def _kafka_path(directory: Path) -> Path:
    """Make what the tests expect of a Kafka installation: scripts that run its tools."""
    jars = toolchain.interop_module("kafka_jars")
    scripts = directory / "bin"
    scripts.mkdir(exist_ok=True)
    for name, main in _SCRIPTS.items():
        try:
            command = shlex.join(jars.java_command(main, jvm_options=jars.SHORT_JVM))
        except jars.KafkaUnavailable as error:
            command = f"echo {shlex.quote(str(error))} >&2; exit 1 #"
        script = scripts / name
        script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        script.chmod(0o755)
    return directory


class LibrdkafkaNoAutoCreateSuite(LibrdkafkaSuite):
    """The cases that want a broker which creates no topic by itself."""

    name = "librdkafka-noautocreate"
    quick = ()
    most_left_out = 0
    scenario = "noautocreate"
    settings: ClassVar[Mapping[str, str | int]] = {"auto.create.topics.enable": "false"}
