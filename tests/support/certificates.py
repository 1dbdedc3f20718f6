"""Certificates for tests of TLS, made by OpenSSL's command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not installed"
)

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make_certificates(folder: Path) -> Path:
    """``ca.pem``, and ``server.pem`` and ``client.pem`` with their keys, both signed by it.

    They are also of broker 1 (X-63).
    """
    _run(
        folder,
        *("req", "-x509", *_KEY, "-days", "2", "-subj", "/CN=test ca"),
        *("-keyout", "ca.key", "-out", "ca.pem"),
    )
    for name, subject in (("server", "/CN=localhost"), ("client", "/O=logstore/OU=tests/CN=me")):
        sign(folder, name, subject, "URI:kafka:broker:1", "URI:a:b")
    return folder


def sign(folder: Path, name: str, subject: str, *names: str) -> Path:
    """A key and a certificate of the authority in ``folder``, for this machine and other
    alternative names, in one file."""
    alternatives = ",".join(("DNS:localhost", "IP:127.0.0.1", *names))
    (folder / "san").write_text(f"subjectAltName={alternatives}\n")
    _run(folder, "req", *_KEY, "-subj", subject, "-keyout", f"{name}.key", "-out", f"{name}.csr")
    _run(
        folder,
        *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
        *("-CAcreateserial", "-days", "2", "-extfile", "san", "-out", f"{name}.crt"),
    )
    both = (folder / f"{name}.key").read_bytes() + (folder / f"{name}.crt").read_bytes()
    (folder / f"{name}.pem").write_bytes(both)
    return folder / f"{name}.pem"


def _run(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
