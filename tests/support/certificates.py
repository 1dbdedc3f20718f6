"""Certificates for tests of TLS, made by OpenSSL's command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not installed"
)


def make_certificates(folder: Path) -> Path:
    """``ca.pem``, and ``server.pem`` and ``client.pem`` with their keys, both signed by it.

    They are also of broker 1 (X-63).
    """

    def run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    run(
        *("req", "-x509", *key, "-days", "2", "-subj", "/CN=test ca"),
        *("-keyout", "ca.key", "-out", "ca.pem"),
    )
    (folder / "san").write_text(
        "subjectAltName=DNS:localhost,IP:127.0.0.1,URI:kafka:broker:1,URI:a:b\n"
    )
    for name, subject in (("server", "/CN=localhost"), ("client", "/O=logstore/OU=tests/CN=me")):
        run("req", *key, "-subj", subject, "-keyout", f"{name}.key", "-out", f"{name}.csr")
        run(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-days", "2", "-extfile", "san", "-out", f"{name}.crt"),
        )
        both = (folder / f"{name}.key").read_bytes() + (folder / f"{name}.crt").read_bytes()
        (folder / f"{name}.pem").write_bytes(both)
    return folder
