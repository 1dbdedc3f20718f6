"""``logstore serve`` with TLS and logins: what it takes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from replication.cli.serve import serve


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
