"""Which jars of ZooKeeper are taken (X-34), and what a server is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.common.errors import ConfigError
from replication.supervisor import zookeeper
from replication.supervisor.cluster_file import ServerPorts
from replication.supervisor.zookeeper import configuration, find_jars, java


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Java is there, and nothing else; the environment of a process."""
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    monkeypatch.setattr(zookeeper, "DEBIAN_JAR", str(tmp_path / "debian" / "zookeeper.jar"))
    monkeypatch.setattr(zookeeper, "find_spec", lambda name: None)
    return {"PATH": str(program.parent)}


def jars(directory: Path, version: str = "3.9.5", *others: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in (f"zookeeper-{version}", f"zookeeper-jute-{version}", "netty-all-4", *others):
        (directory / f"{name}.jar").touch()
    return directory


class Spec:
    def __init__(self, place: Path) -> None:
        self.submodule_search_locations = [str(place)]


def test_the_order(
    tmp_path: Path, bare_machine: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that is added goes before those that were there."""
    assert find_jars(None, bare_machine) is None

    jars(tmp_path / "pyspark" / "jars", "3.9.5", "spark-core")
    monkeypatch.setattr(zookeeper, "find_spec", lambda name: Spec(tmp_path / name))
    found = find_jars(None, bare_machine)
    assert found is not None
    assert (found.origin.split()[0], found.version) == ("PySpark", "3.9")
    assert "spark-core" not in found.classpath
    assert found.classpath.count(".jar") == 3

    jars(tmp_path / "debian", "3.8.0")
    (tmp_path / "debian" / "zookeeper.jar").touch()
    found = find_jars(None, bare_machine)
    assert found is not None
    assert found == ("Debian's package zookeeper", "3.8", zookeeper.DEBIAN_JAR)

    home = jars(tmp_path / "home [1]" / "lib", "3.7.1").parent
    found = find_jars(None, {**bare_machine, "ZOOKEEPER_HOME": str(home)})
    assert found is not None
    assert found.origin == f"ZOOKEEPER_HOME ({home}/lib)"

    given = jars(tmp_path / "given", "3.6.0")
    found = find_jars(str(given), {**bare_machine, "ZOOKEEPER_HOME": str(home)})
    assert found is not None
    assert (found.origin, found.version) == (f"--zookeeper-jars ({given})", "3.6")


@pytest.mark.parametrize("version", ["3.5.9", "2.10.0", "x"])
def test_one_that_is_too_old_is_none(
    tmp_path: Path, bare_machine: dict[str, str], version: str
) -> None:
    """X-36."""
    given = jars(tmp_path / "given", version)
    with pytest.raises(ConfigError, match=r"no ZooKeeper of 3\.6 or later is there"):
        find_jars(str(given), bare_machine)
    assert find_jars(None, {**bare_machine, "ZOOKEEPER_HOME": str(given)}) is None


def test_without_java(tmp_path: Path, bare_machine: dict[str, str]) -> None:
    given = str(jars(tmp_path / "given"))
    nowhere = {"PATH": str(tmp_path)}
    assert java(nowhere) is None
    assert find_jars(None, {**nowhere, "ZOOKEEPER_HOME": given}) is None
    with pytest.raises(ConfigError, match="ZooKeeper needs Java"):
        find_jars(given, nowhere)
    assert java({**nowhere, "JAVA_HOME": str(tmp_path / "jdk")}) == f"{tmp_path}/jdk/bin/java"


def test_the_configuration_of_an_ensemble() -> None:
    servers = [ServerPorts(2181, 2888, 3888), ServerPorts(2182, 2889, 3889)]
    alone = configuration("/data", servers[0])
    text = configuration("/data", servers[1], servers)
    assert "clientPort=2182\nclientPortAddress=127.0.0.1\n" in text
    assert "dataDir=/data\n" in text
    assert text.endswith("server.1=127.0.0.1:2888:3888\nserver.2=127.0.0.1:2889:3889\n")
    assert "server." not in alone
