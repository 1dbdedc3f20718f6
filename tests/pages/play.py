"""``play.py SCRIPTS DIRECTORY SECONDS``: run scripts of pages with this interpreter, each in its
time.

Nothing is imported but the standard library, so any environment can run it. Each script has a
working directory and a root of its own below DIRECTORY, which it finds as the last run left them.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import traceback
import types
from pathlib import Path
from typing import Any

PLACES = ("backup", "disk-1", "disk-2", "etc", "mnt", "tmp", "var/lib")
ABSOLUTE = re.compile(rf"(?<![\w./:])/(?=(?:{'|'.join(PLACES)})\b)")
READY = "ready:"


def play(script: dict[str, Any], directory: Path) -> None:
    home, root = directory / "home", directory / "root"
    first = not home.exists()
    for path in (home, *(root / place for place in PLACES)):
        path.mkdir(parents=True, exist_ok=True)
    os.chdir(home)
    parts = [(line, ABSOLUTE.sub(f"{root}/", text)) for line, text in script["parts"]]
    if script["kind"] == "console":
        console("".join(text for _, text in parts), first)
        return
    # Beside the directory from which it runs, as code is not where the data is.
    file = directory / "test_page.py"
    file.write_text("\n\n".join(text for _, text in parts))
    if script["kind"] == "pytest":
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
        subprocess.run(words, check=True)
    else:
        said = io.StringIO()
        # As if this were the program: processes that it starts look for their functions there.
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        main.__file__ = str(file)
        with contextlib.redirect_stdout(said):
            for line, text in parts:  # a traceback shows the lines of the page
                code = compile("\n" * (line - 1) + text, script["page"], "exec")
                exec(code, vars(main))
        settle()
        if first and script["prints"] is not None:
            expect(said.getvalue(), script["prints"])


def settle() -> None:
    """Let the streams that a page has started do their work, and end them."""
    if "pyspark" in sys.modules:
        from pyspark.sql import SparkSession

        spark = SparkSession.getActiveSession()
        for query in spark.streams.active if spark else ():
            query.processAllAvailable()
            query.stop()


def console(text: str, first: bool) -> None:
    """What a person types, and what the screen shows; a server goes on until the end."""
    with contextlib.ExitStack() as servers:
        for typed in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, shown = re.match(r"((?:.*\\\n)*.*)\n((?s:.*))", typed).groups()
            if command.startswith("logstore serve") or command.endswith(" &"):
                said = serve(command.removesuffix("&"), servers)
            else:
                done = subprocess.run(
                    ["bash", "-o", "pipefail", "-c", command], stdout=subprocess.PIPE, text=True
                )
                said = done.stdout
                if done.returncode:
                    raise AssertionError(f"{command}: exit code {done.returncode}\n{said}")
            if first and shown.strip():
                expect(said, shown.strip("\n") + "\n")


def serve(command: str, servers: contextlib.ExitStack) -> str:
    """Start it, and return what it says until it is ready."""
    server = subprocess.Popen(["bash", "-c", f"exec {command}"], stdout=subprocess.PIPE, text=True)
    servers.callback(server.wait)
    servers.callback(server.terminate)
    said = []
    for line in server.stdout:
        said.append(line)
        if line.startswith(READY):
            break
    else:
        raise AssertionError(f"{command}: it ended\n{''.join(said)}")
    if "--http" in command:
        said.append(server.stdout.readline())
    return "".join(said)


def expect(said: str, page: str) -> None:
    pattern = ".*".join(map(re.escape, page.split("…")))
    if not re.fullmatch(pattern, said, re.DOTALL):
        raise AssertionError(f"the page says:\n{page}\nit was:\n{said}")


def raise_loopback() -> None:
    """A network of its own begins with nothing that is up."""
    with socket.socket() as any_socket:  # SIOCSIFFLAGS, IFF_UP | IFF_LOOPBACK | IFF_RUNNING
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x49))


def main(listed: str, directory: Path, limit_s: float) -> int:
    def too_long(*_: object) -> None:
        raise TimeoutError(f"it is not done within {limit_s:g} s")

    with contextlib.suppress(PermissionError):
        raise_loopback()
    scripts = json.loads(Path(listed).read_text())
    signal.signal(signal.SIGALRM, too_long)
    failed = 0
    for script in scripts:  # they change what they like of this process, as its arguments
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            play(script, directory / re.sub(r"\W", "-", script["name"]))
        except BaseException:
            failed += 1
            print(f"==== {script['name']}", traceback.format_exc(), sep="\n", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])))
