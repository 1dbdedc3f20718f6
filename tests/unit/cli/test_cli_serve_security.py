"""``logstore serve`` with TLS and logins: what it takes, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from replication.cli.serve import serve
from tests.support.certificates import make_certificates, needs_openssl


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--listen", "TLS://127.0.0.1:0"], "'TLS' is not one of the security protocols"),
        (["--listen", "SASL_PLAINTEXT://127.0.0.1:0"], "takes credentials"),
        (["--listen", "SSL://127.0.0.1:0"], "ssl.keystore.location"),
        (["--listen", "0.0.0.0:0", "--advertise", "localhost"], "neither TLS nor SASL"),
    ],
)
def test_what_is_refused(tmp_path: Path, options: list[str], words: str) -> None:
    told = CliRunner().invoke(serve, ["--dir", str(tmp_path / "kafka"), *options])
    assert told.exit_code == 2
    assert words in told.output


@pytest.mark.parametrize("text", ["alice", ":x", "alice:", "alice:a\nalice:b", "\xff"])
def test_a_malformed_file_of_users(tmp_path: Path, text: str) -> None:
    users = tmp_path / "users"
    users.write_bytes(text.encode("latin-1"))
    options = ["--listen", "SASL_PLAINTEXT://127.0.0.1:0", "--users", str(users)]
    told = CliRunner().invoke(serve, ["--dir", str(tmp_path / "kafka"), *options])
    assert told.exit_code == 2
    assert str(users) in told.output.replace("\n", "")
    assert "alice" not in told.output


@needs_openssl
@pytest.mark.slow
def test_a_client_logs_in(tmp_path: Path) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    certificates = make_certificates(tmp_path)
    (tmp_path / "users").write_text("alice:secret:with:colons\n\nbob:x\n")
    server = subprocess.Popen(
        [
            *(sys.executable, "-c", "from replication.cli.serve import serve; serve()"),
            *("--dir", str(tmp_path / "kafka")),
            *("--listen", "SASL_SSL://127.0.0.1:0", "--users", str(tmp_path / "users")),
            *("--config", f"ssl.keystore.location={certificates / 'server.pem'}"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        address = server.stdout.readline().removeprefix("ready:").strip()
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "security.protocol": "SASL_SSL",
                "sasl.mechanisms": "SCRAM-SHA-512",
                "sasl.username": "alice",
                "sasl.password": "secret:with:colons",
                "ssl.ca.location": str(certificates / "ca.pem"),
            }
        )
        producer.produce("orders", b"value")
        assert producer.flush(30) == 0
    finally:
        server.terminate()
        server.wait(60)
        server.stdout.close()
    assert server.returncode == 0
