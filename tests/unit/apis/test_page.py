"""docs/server.md says which versions are served."""

from __future__ import annotations

import re
from pathlib import Path

from replication.apis.common.broker_requests import LAST_OF_CLIENTS
from replication.protocol import SERVED, ApiKey, schema
from replication.server.serving import ServedCluster
from tests.support.wire_client import WireClient

PAGE = Path(__file__).resolve().parents[3] / "docs" / "server.md"
ROW = re.compile(r"^\| (\w+) \| (\d+) \| (\d+)–(\d+) \|", re.MULTILINE)


def rows() -> dict[ApiKey, tuple[str, int, int]]:
    found = ROW.findall(PAGE.read_text())
    return {ApiKey(int(key)): (name, int(first), int(last)) for name, key, first, last in found}


def test_the_page_has_every_api_and_version() -> None:
    assert rows() == {
        key: (schema.APIS[key].name, served.first, LAST_OF_CLIENTS.get(key, served.last))
        for key, served in SERVED.items()
    }


def test_every_api_of_the_page_is_advertised(kafka: ServedCluster, client: WireClient) -> None:
    from replication.protocol import messages as wire

    response = client.ask(ApiKey.API_VERSIONS, 3, wire.ApiVersionsRequest("test", "1"))
    advertised = {ApiKey(each.api_key) for each in response.api_keys}
    assert advertised == rows().keys() - {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
