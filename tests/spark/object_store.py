"""A real S3 protocol on loopback: moto's server in a thread, and what a test needs to fill it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from pyarrow import fs

# The server takes any. URIs carry them here: tasks of a session have no part in the environment of
# a test that began after it.
KEY, SECRET = "test", "not-for-messages"


@dataclass
class ObjectStore:
    """``bucket`` exists; ``files`` reaches all buckets for writing."""

    port: int
    files: fs.FileSystem
    client: Any

    def uri(self, path: str) -> str:
        place = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"
        return f"s3://{KEY}:{SECRET}@{path}?{place}"

    def upload(self, directory: Path, path: str) -> str:
        """Copy a directory with all below it; its URI."""
        fs.copy_files(
            str(directory),
            path,
            source_filesystem=fs.LocalFileSystem(),
            destination_filesystem=self.files,
        )
        return self.uri(path)

    @contextmanager
    def requests(self) -> Iterator[list[str]]:
        """Those that come meanwhile, each as its method and its path: ``GET /bucket/key``."""
        found: list[str] = []

        class Listener(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if match := re.search(r'"([A-Z]+ [^ ]+) HTTP', record.getMessage()):
                    found.append(unquote(match[1]))

        log, listener = logging.getLogger("werkzeug"), Listener()
        level, propagates = log.level, log.propagate
        log.addHandler(listener)
        log.setLevel(logging.INFO)
        log.propagate = False
        try:
            yield found
        finally:
            log.removeHandler(listener)
            log.setLevel(level)
            log.propagate = propagates

    @contextmanager
    def denying(self) -> Iterator[None]:
        """Every request is refused meanwhile."""
        from moto import settings

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0.0)
            yield


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )
        client.create_bucket(Bucket="bucket")
        files = fs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            region="us-east-1",
            endpoint_override=f"127.0.0.1:{port}",
            scheme="http",
        )
        yield ObjectStore(port, files, client)
    finally:
        server.stop()
