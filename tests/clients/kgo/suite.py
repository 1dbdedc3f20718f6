"""franz-go's own tests of its client ``kgo``, as one compiled test program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from tests.clients import servers
from tests.clients.go_suite import GoSuite


class KgoSuite(GoSuite):
    """Groups that move data in and out exactly once, transactions, and the client's old issues."""

    name = "kgo"
    module = "github.com/twmb/franz-go"
    version = "1.22.2"
    package = "pkg/kgo"
    pinned = f"franz-go {version}, package kgo"
    broker = re.compile(
        r"tmpTopic|getSeedBrokers|newTestClient|testClientOpts|tmpGroup|adm\(\)|scram"
    )
    quick = ("TestPing", "TestClient_Produce", "TestGroupSimple", "TestIssue865")
    most_left_out = 0
    environment: ClassVar[Mapping[str, str]] = {}

    def environment_for(self, bootstrap: str) -> Mapping[str, str]:
        return {
            "KGO_SEEDS": bootstrap,
            "KGO_TEST_RF": "1",
            "KGO_TEST_RECORDS": "3000",
            "KGO_TEST_MAX_TOPIC_PARTS": "3",
            **({"KGO_TEST_SCRAM_SEEDS": bootstrap} if self.has_login else {}),
            **self.environment,
        }


class KgoChaosSuite(KgoSuite):
    """The same tests on connections that are slow and break."""

    name = "kgo-chaos"
    environment: ClassVar[Mapping[str, str]] = {"KGO_TEST_CHAOS": "1"}


class KgoReplicatedSuite(KgoSuite):
    """The same tests on three brokers, with topics of three replicas."""

    name = "kgo-replicated"
    quick = ()
    brokers = 3
    environment: ClassVar[Mapping[str, str]] = {"KGO_TEST_RF": "3"}


class KgoScramSuite(KgoSuite):
    """The tests of logins, which the other suites skip; the rest of kgo logs in nowhere."""

    name = "kgo-scram"
    quick = ("TestSCRAMAuth", "TestSCRAMAuthBadCredentials")
    has_login = True
    environment: ClassVar[Mapping[str, str]] = {
        "KGO_TEST_SCRAM": f"{servers.USER}:{servers.PASSWORD}:512"
    }

    def cases(self) -> list[str]:
        return [case for case in super().cases() if "SCRAM" in case]
