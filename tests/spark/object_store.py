"""A real S3 protocol on loopback: moto's server in a thread, and what a test needs to fill it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

# The server takes any; given in the environment, as Arrow's and Amazon's clients look there.
_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass
class ObjectStore:
    """``bucket`` exists; ``files`` reaches all buckets for writing."""

    port: int
    files: fs.FileSystem
    client: Any

    def uri(self, path: str) -> str:
        return f"s3://{path}?endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"

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

    with pytest.MonkeyPatch.context() as patch:
        for key, value in _ENVIRONMENT.items():
            patch.setenv(key, value)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        try:
            _, port = server.get_host_and_port()
            client = boto3.client(
                "s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1"
            )
            client.create_bucket(Bucket="bucket")
            files = fs.S3FileSystem(
                endpoint_override=f"127.0.0.1:{port}", scheme="http", region="us-east-1"
            )
            yield ObjectStore(port, files, client)
        finally:
            server.stop()
