"""An S3 server in a process of its own, on loopback, and the copy that a backup is compared with.

versitygw serves a directory; it is on the PATH, or ``go`` builds it once into ``.cache/go``. Where
there is neither, moto's server takes its place, which keeps everything in memory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from server_peers import ROOT, START_S, free_port

GATEWAY = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
BUILD_S = 600
BUCKET, KEY, SECRET, REGION = "bucket", "test", "not-for-messages", "us-east-1"


@dataclass(frozen=True)
class S3Server:
    """``BUCKET`` exists. ``environment`` is what a client needs that takes no URI."""

    name: str
    port: int
    pid: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def uri(self, path: str) -> str:
        place = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region={REGION}"
        return f"s3://{KEY}:{SECRET}@{BUCKET}/{path}?{place}"


@contextlib.contextmanager
def s3_server(directory: Path) -> Iterator[S3Server]:
    """A server with an empty bucket; what it keeps is below ``directory``."""
    port, found = free_port(), _gateway()
    (directory / BUCKET).mkdir(parents=True)
    if found is None:
        name, command = "moto", [sys.executable, "-m", "moto.server", "-p", str(port)]
    else:
        name = "versitygw"
        command = [found, "--port", f"127.0.0.1:{port}", "--access", KEY, "--secret", SECRET]
        command += ["--region", REGION, "--keep-alive", "--quiet", "posix", str(directory)]
    with Path(f"{directory}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _await_listener(port, process)
        server = S3Server(name, port, process.pid)
        if found is None:
            _create_bucket(server)
        yield server
    finally:
        process.kill()
        process.wait()


def _gateway() -> str | None:
    found, built = shutil.which("versitygw"), ROOT / ".cache" / "go" / "bin" / "versitygw"
    if found is None and not built.exists():
        go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
        if go is None:
            return None
        places = {"GOPATH": str(ROOT / ".cache" / "go"), "GOFLAGS": "-modcacherw"}
        environment = {**os.environ, **places}
        subprocess.run([go, "install", GATEWAY], env=environment, check=True, timeout=BUILD_S)
    return found or str(built)


def _await_listener(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _create_bucket(server: S3Server) -> None:
    import boto3

    boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name=REGION,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
    ).create_bucket(Bucket=BUCKET)


def copy_command(directory: Path, path: str) -> tuple[str, list[str]]:
    """The name and the command that copies a directory to the bucket: ``aws s3 cp``, or where it is
    not installed the library that it copies with, whose settings are the same."""
    if _runs("aws"):
        target = f"s3://{BUCKET}/{path}"
        return "aws s3 cp", ["aws", "s3", "cp", "--recursive", "--quiet", str(directory), target]
    program = str(Path(__file__).resolve())
    return "boto3", [sys.executable, program, str(directory), path]


def _runs(command: str) -> bool:
    """Whether it is there; one that a version manager only pretends to have is not."""
    if shutil.which(command) is None:
        return False
    answer = subprocess.run([command, "--version"], capture_output=True, check=False)
    return answer.returncode == 0


def _copy(directory: Path, path: str) -> None:
    import boto3
    from boto3.s3.transfer import S3Transfer, TransferConfig

    with S3Transfer(boto3.client("s3"), TransferConfig()) as transfer:
        for each in sorted(directory.rglob("*")):
            if each.is_file():
                transfer.upload_file(str(each), BUCKET, f"{path}/{each.relative_to(directory)}")


if __name__ == "__main__":
    _copy(Path(sys.argv[1]), sys.argv[2])
