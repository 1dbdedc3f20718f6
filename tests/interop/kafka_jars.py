"""Class path, compiler and launcher for code that runs against a real Apache Kafka.

Maven resolves the jars that ``kafka/pom.xml`` names and keeps them in its own repository; what is
cached here is the answer, so that a second run needs neither Maven nor a network. No part of this
module knows pytest: the benchmark harness uses it too.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from tests.support.until import patience

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "kafka"
KAFKA = Path(__file__).resolve().parent / "kafka"
POM = KAFKA / "pom.xml"
POM_3_9 = KAFKA / "clients-3.9.xml"  # whose controller still speaks to brokers by request
BROKER_3_9 = KAFKA / "broker-3.9.xml"  # KRaft, and the last one with ZooKeeper
BROKER_2_8 = KAFKA / "broker-2.8.xml"  # ZooKeeper
BROKER_2_1 = KAFKA / "broker-2.1.xml"  # the oldest that newer clients speak to
TIERED_4_3 = KAFKA / "tiered-4.3.xml"  # with a tier in a local directory
JAVA_SOURCES = Path(__file__).resolve().parent / "java"

SHORT_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For a JVM of a few seconds, which ends before optimised code pays for its compilation."""

JAVA_VERSION_MIN = 17  # what the broker's classes are compiled for


class KafkaUnavailable(Exception):
    """This machine cannot run a real Kafka; the argument says why, for a skip message."""


class JavaError(Exception):
    """A helper ended with an unexpected status; the text holds what it wrote to standard error."""


@functools.cache
def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise KafkaUnavailable(f"{name} is not on PATH")
    return path


@functools.cache
def _check_java() -> None:
    """Raise unless ``java`` is new enough, which a broker would tell in far more words."""
    _tool("javac")
    answer = subprocess.run(
        [_tool("java"), "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
    )
    for line in answer.stderr.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "java.specification.version":
            version = int(value.strip().removeprefix("1."))
            if version < JAVA_VERSION_MIN:
                raise KafkaUnavailable(f"Java {version} found, {JAVA_VERSION_MIN} or later needed")
            return
    raise KafkaUnavailable(f"java does not tell its version: {answer.stderr.strip()[-500:]}")


def kafka_version(pom: Path = POM) -> str:
    """Return the release that ``pom`` names."""
    element = ElementTree.parse(pom).find(
        "m:properties/m:kafka.version", {"m": "http://maven.apache.org/POM/4.0.0"}
    )
    if element is None or not element.text:
        raise ValueError(f"{pom} names no kafka.version")
    return element.text


def _publish(temporary: Path, final: Path) -> None:
    """Rename into place, so that another process sees nothing or all of it; the first one wins."""
    try:
        temporary.rename(final)
    except OSError:
        if not final.exists():
            raise
        shutil.rmtree(temporary)


@functools.cache
def classpath(timeout_s: float = 5 * patience(), pom: Path = POM) -> str:
    """Return the class path of Kafka's broker, tools and clients.

    Args:
        pom: which Kafka, and which of its jars.
        timeout_s: how long Maven may take, which includes a download of about 45 MB the first time.
    Raises:
        KafkaUnavailable: no JDK, no Maven, or Maven could not resolve the jars in time.
    """
    _check_java()
    key = hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    directory = CACHE / f"classpath-{key}"
    answer = directory / "classpath.txt"
    if answer.exists():
        text = answer.read_text()
        if all(Path(jar).exists() for jar in text.split(os.pathsep)):
            return text
        shutil.rmtree(directory)  # Maven's repository was cleaned since

    maven = _tool("mvn")
    CACHE.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix="classpath-", dir=CACHE))
    try:
        command = [maven, "-q", "-B", "-f", str(pom), "dependency:build-classpath"]
        command.append(f"-Dmdep.outputFile={temporary / 'classpath.txt'}")
        try:
            result = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            reason = f"Maven did not resolve Kafka within {timeout_s:.0f} s"
            raise KafkaUnavailable(reason) from None
        if result.returncode != 0:
            reason = (result.stdout + result.stderr).strip()[:1000]
            raise KafkaUnavailable(f"Maven could not resolve Kafka {kafka_version(pom)}: {reason}")
        _publish(temporary, directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return answer.read_text()


def compile_java(sources: Sequence[Path]) -> Path:
    """Compile ``sources`` together against Kafka and return the directory of their classes.

    The result is cached by the content of the sources and of the pom, and may be shared by
    processes that run at the same time.

    Raises:
        KafkaUnavailable: as ``classpath``.
        JavaError: the compiler refused the sources.
    """
    jars = classpath()
    digest = hashlib.sha256(POM.read_bytes())
    for source in sorted(sources):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    final = CACHE / f"classes-{digest.hexdigest()[:16]}"
    if final.exists():
        return final
    temporary = Path(tempfile.mkdtemp(prefix="classes-", dir=CACHE))
    try:
        command = [_tool("javac"), "-Xlint:all,-processing,-classfile", "-Werror"]
        command += ["--release", str(JAVA_VERSION_MIN), "-cp", jars, "-d", str(temporary)]
        command += [str(source) for source in sources]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=5 * patience(), check=False
        )
        if result.returncode != 0:
            raise JavaError(result.stdout + result.stderr)
        _publish(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def helper_classes() -> Path:
    """Return the compiled helpers of ``tests/interop/java``."""
    return compile_java(sorted(JAVA_SOURCES.glob("*.java")))


def java_command(
    main: str,
    *args: str,
    classes: Path | None = None,
    jvm_options: Sequence[str] = ("-Xmx512m",),
    log_level: str = "error",
    pom: Path = POM,
) -> list[str]:
    """Return the command that runs ``main`` with Kafka, and ``classes``, on its class path.

    Kafka's own log goes to standard error from ``log_level`` on. ``pom``: which Kafka.
    """
    jars = classpath(pom=pom)
    path = jars if classes is None else f"{classes}{os.pathsep}{jars}"
    return [
        _tool("java"),
        *jvm_options,
        f"-Dlog4j2.configurationFile={(KAFKA / 'log4j2.properties').as_uri()}",
        f"-Dlog4j.configuration={(KAFKA / 'log4j.properties').as_uri()}",
        f"-Dlogstore.log.level={log_level}",
        "-cp",
        path,
        main,
        *args,
    ]


def run_java(
    main: str,
    *args: str,
    classes: Path | None = None,
    stdin: str = "",
    jvm_options: Sequence[str] = SHORT_JVM,
    timeout_s: float = 2 * patience(),
    statuses: Sequence[int] = (0,),
    pom: Path = POM,
) -> subprocess.CompletedProcess[str]:
    """Run ``main`` to its end and return what it printed.

    Args:
        statuses: exit statuses that are an answer; any other raises.
    Raises:
        KafkaUnavailable: as ``classpath``.
        JavaError: it ended with another status, or not within ``timeout_s``.
    """
    command = java_command(main, *args, classes=classes, jvm_options=jvm_options, pom=pom)
    try:
        result = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise JavaError(f"{main} did not end within {timeout_s:.0f} s: {error.stderr!r}") from None
    if result.returncode not in statuses:
        raise JavaError(f"{main} ended with {result.returncode}: {result.stderr.strip()[-4000:]}")
    return result
