"""Running scripts in an interpreter, and asking mypy about them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.pages.snippets import JARS, ROOT, Script, jar, own_network

HERE = Path(__file__).resolve().parent
# A JVM lives for seconds here, so the second compiler never pays; no port is opened to look at.
SPARK = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
SUBMIT = "--conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2"
LIMIT_S = 120
"""For one script; a first start of Spark takes 20."""
START_S = 60
"""More than that for all of them: then the player itself hangs."""


def run(
    scripts: Iterable[Script], directory: Path, python: str = sys.executable, path: str = str(ROOT)
) -> None:
    """Run the scripts twice in a row, each in its directory, with ``path`` as ``PYTHONPATH``.

    Raises:
        AssertionError: one of them failed, took too long, or said something else than its page.
    """
    scripts = list(scripts)
    jars = [jar(name) for name in JARS if any(name in script.names for script in scripts)]
    listed, values = directory / "scripts.json", [script.to_json() for script in scripts]
    listed.write_text(json.dumps(values))
    environment = {
        **os.environ,
        **SPARK,
        # Not spark.jars, which a session sets.
        "PYSPARK_SUBMIT_ARGS": " ".join([SUBMIT, *_class_path(jars), "pyspark-shell"]),
        "PATH": f"{os.path.dirname(python)}:{os.environ['PATH']}",
        "PYTHONPATH": f"{path}:{HERE}" if path else str(HERE),
        "COLUMNS": "100",
    }
    command = [*own_network(), python, str(HERE / "play.py")]
    for turn in ("first", "second"):
        said = directory / "said.txt"  # no pipe, which ends when all have closed it
        with (
            said.open("w") as output,
            subprocess.Popen(
                [*command, str(listed), str(directory), str(LIMIT_S)],
                cwd=directory,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as player,
        ):
            try:
                player.wait(LIMIT_S * len(values) + START_S)
            finally:  # servers, too, that a script has left
                with suppress(ProcessLookupError):
                    os.killpg(player.pid, signal.SIGKILL)
        assert player.returncode == 0, f"the {turn} time:\n{said.read_text()[-8000:]}"


def _class_path(jars: list[str]) -> list[str]:
    return [f"--conf spark.driver.extraClassPath={os.pathsep.join(jars)}"] if jars else []


def check_types(scripts: Iterable[Script], directory: Path) -> int:
    """Run ``mypy --strict`` over the scripts, each a module; its lines are those of the page."""
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("*.py"):
        old.unlink()
    names: dict[str, str] = {}
    for script in scripts:
        if script.kind == "console":
            continue
        lines: list[str] = []
        for line, text in script.parts:
            lines += [""] * (line - 1 - len(lines))
            lines += text.splitlines()
        path = directory / (re.sub(r"\W", "_", script.name) + ".py")
        path.write_text("\n".join(lines) + "\n")
        names[str(path)] = str(script.page.relative_to(ROOT))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *names],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": f"{HERE}"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    for path, page in names.items():
        said = said.replace(os.path.relpath(path, ROOT), page)
    print(said, end="")
    return done.returncode
