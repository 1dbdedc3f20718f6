"""ZooKeeper out of jars that lie on this machine: where they are, and how a server starts.

Nothing is fetched (X-34). Its servers listen on loopback alone.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Mapping, Sequence
from glob import escape, glob
from importlib.util import find_spec
from typing import NamedTuple

from logstore.common.errors import ConfigError
from replication.supervisor.cluster_file import ServerPorts

MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
DEBIAN_JAR = "/usr/share/java/zookeeper.jar"  # its manifest names all other jars
# What the server needs, by the beginning of its name; logback says something if it is there.
PARTS = (
    "zookeeper-[0-9]",
    "zookeeper-jute-",
    "netty-",
    "slf4j-api-",
    "metrics-core-",
    "snappy-java-",
    "commons-io-",
    "logback-",
)
LOWEST = (3, 6)  # persistent recursive watches
JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
TICK_MS = 2000
ANSWER_S = 2.0
_VERSION = re.compile(r"zookeeper-(\d+)\.(\d+)[^/]*\.jar")


class Jars(NamedTuple):
    """Those of a ZooKeeper that was found.

    Attributes:
        origin: where, in words.
    """

    origin: str
    version: str
    classpath: str


def find_jars(given: str | None, environment: Mapping[str, str]) -> Jars | None:
    """Those in the directory ``given``, of ``ZOOKEEPER_HOME``, of Debian's package or of PySpark,
    in this order; None if there are none, or no Java.

    Raises:
        ConfigError: ``given`` has no ZooKeeper, or one that is too old.
    """
    if given is not None:
        found = _in_directory("--zookeeper-jars", given)
        if found is None:
            raise ConfigError(
                f"--zookeeper-jars {given}: no ZooKeeper of 3.6 or later is there "
                "(zookeeper-*.jar, zookeeper-jute-*.jar and what they need)"
            )
    else:
        found = _in_home(environment.get("ZOOKEEPER_HOME")) or _of_debian() or _of_pyspark()
    if java(environment) is None:
        if given is not None:
            raise ConfigError("ZooKeeper needs Java: java is not on PATH, nor in JAVA_HOME")
        return None
    return found


def java(environment: Mapping[str, str]) -> str | None:
    """The program."""
    home = environment.get("JAVA_HOME")
    if home and os.access(program := os.path.join(home, "bin", "java"), os.X_OK):
        return program
    return shutil.which("java", path=environment.get("PATH"))


def _in_home(home: str | None) -> Jars | None:
    if not home:
        return None
    return _in_directory("ZOOKEEPER_HOME", os.path.join(home, "lib")) or _in_directory(
        "ZOOKEEPER_HOME", home
    )


def _of_debian() -> Jars | None:
    if not os.path.exists(DEBIAN_JAR):
        return None
    # Its version is in the name of a link beside it.
    beside = glob(f"{os.path.dirname(DEBIAN_JAR)}/zookeeper-[0-9]*.jar")
    version = next((match for jar in beside if (match := _VERSION.search(jar))), None)
    if version is None or not _is_new(version):
        return None
    return Jars("Debian's package zookeeper", ".".join(version.groups()), DEBIAN_JAR)


def _of_pyspark() -> Jars | None:
    spec = find_spec("pyspark")  # without importing it
    for place in () if spec is None else spec.submodule_search_locations or ():
        if (found := _in_directory("PySpark", os.path.join(place, "jars"))) is not None:
            return found
    return None


def _in_directory(origin: str, directory: str) -> Jars | None:
    directory = os.path.abspath(directory)
    jars = [
        jar
        for part in PARTS
        for jar in sorted(glob(os.path.join(escape(directory), f"{part}*.jar")))
    ]
    version = next((match for jar in jars if (match := _VERSION.search(jar))), None)
    if version is None or not _is_new(version):
        return None
    return Jars(f"{origin} ({directory})", ".".join(version.groups()), os.pathsep.join(jars))


def _is_new(version: re.Match[str]) -> bool:
    return (int(version[1]), int(version[2])) >= LOWEST


# -- a server -------------------------------------------------------------------------------------


def configuration(
    data: str, ports: ServerPorts, ensemble: Sequence[ServerPorts] = (), tick_ms: int = TICK_MS
) -> str:
    """The file of a server. Data of an ensemble also have the file ``myid``: 1 for the first."""
    settings: dict[str, object] = {
        "tickTime": tick_ms,
        "initLimit": 10,
        "syncLimit": 5,
        "maxSessionTimeout": 60_000,
        "dataDir": data,
        "clientPort": ports.port,
        "clientPortAddress": "127.0.0.1",
        "maxClientCnxns": 0,
        "autopurge.purgeInterval": 1,  # hours
        "admin.enableServer": "false",  # not all of its parts are there
        "4lw.commands.whitelist": "ruok,srvr,mntr",
    }
    for number, each in enumerate(ensemble, 1):
        settings[f"server.{number}"] = f"127.0.0.1:{each.peer_port}:{each.election_port}"
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def server_command(program: str, jars: Jars, configuration_file: str) -> list[str]:
    return [program, *JVM, "-cp", jars.classpath, MAIN, configuration_file]


def ask(host: str, port: int, word: str, timeout_s: float = ANSWER_S) -> str:
    """The answer to a word of four letters.

    Raises:
        OSError: there is none.
    """
    with socket.create_connection((host, port), timeout=timeout_s) as server:
        if server.getsockname() == server.getpeername():
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")  # we met ourselves
        server.sendall(word.encode())
        answer = b""
        while len(answer) < 1 << 16 and (more := server.recv(1 << 12)):
            answer += more
    return answer.decode("ascii", "replace")


def serves(port: int, timeout_s: float = ANSWER_S) -> bool:
    """Whether a server answers clients there, alone or in an ensemble with a majority."""
    try:
        return "Mode: " in ask("127.0.0.1", port, "srvr", timeout_s)
    except OSError:
        return False
