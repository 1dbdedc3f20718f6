"""The short setting of the protocol's fuzzer, and mistakes that it must find."""

from __future__ import annotations

import pytest

from replication.protocol import compiler, messages, schema
from replication.protocol.compiler import MAX_ELEMENTS, compile_decoder, decoder_source
from tests.fuzz import protocol
from tests.fuzz.protocol import MEMORY_CONSTANT, MEMORY_OF_A_BYTE, case, header_case, memory_of

CASES = 2_500


@pytest.mark.slow
def test_changed_messages_are_judged_as_by_a_plain_decoder():
    outcomes = [case(number) for number in range(CASES)]
    assert [outcome for outcome in outcomes if outcome.wrong] == []
    accepted = sum(outcome.accepted for outcome in outcomes)
    assert CASES * 0.1 < accepted < CASES * 0.6, "the cases are too tame, or too wild"


def test_changed_headers_are_read_or_refused():
    assert [wrong for number in range(CASES) if (wrong := header_case(number))] == []


@pytest.mark.parametrize(
    ("name", "version", "head", "element"),
    [
        ("MetadataRequest", 0, b"%c", b"\0\0"),
        ("OffsetFetchRequest", 7, b"\2g%c", b"\1\1\0"),
        ("DescribeTopicPartitionsRequest", 0, b"%c", b"\1\0"),
        ("ApiVersionsResponse", 3, b"\0\0%c", b"\0\0\0\0\0\0\0"),
        ("FetchRequest", 12, bytes(25) + b"%c", b"\1\1\0"),
    ],
)
def test_memory_grows_with_the_bytes_that_are_there(
    name: str, version: int, head: bytes, element: bytes
):
    for count in (100, 10_000, MAX_ELEMENTS + 1):
        flexible = version in schema.message(name).flexible
        size = protocol.uvarint(count + 1) if flexible else count.to_bytes(4, "big")
        data = head.replace(b"%c", size) + element * count
        assert memory_of(name, version, data) < MEMORY_CONSTANT + MEMORY_OF_A_BYTE * len(data)
        # The count alone costs nothing.
        assert memory_of(name, version, data[: len(head) + 3]) < MEMORY_CONSTANT


MISTAKES = {
    "a null is let through": ("raise bad('group_id: null or negative length')", "group_id_1 = ''"),
    "a tag may come twice": ("<= last", "< last"),
    "a tag fills what it likes": ("if p != stop", "if p > stop"),
    "bytes may be left": ("if p != end:", "if p > end:"),
    "an unknown tag is not skipped": ("p = stop_", "p = p or stop_"),
    "a long number is read short": ("> 127", "> 128"),
}


MESSAGE_OF = {
    "a null is let through": ("HeartbeatRequest", 4),
    "bytes may be left": ("FetchResponse", 16),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows(mistake: str, monkeypatch: pytest.MonkeyPatch):
    """Each is planted in the text of the compiled decoders of one message."""
    name, version = MESSAGE_OF.get(mistake, ("FetchRequest", 16))
    right, wrong = MISTAKES[mistake]
    arguments = schema.message(name), version, messages.structures(name)
    assert right in decoder_source(*arguments)
    real = compiler._Source.text
    with monkeypatch.context() as patch:
        patch.setattr(compiler._Source, "text", lambda self: real(self).replace(right, wrong))
        planted = compile_decoder(*arguments)
    monkeypatch.setattr(protocol, "decoder", lambda *_: planted)
    monkeypatch.setattr(protocol, "EVERY_VERSION", [(name, version)])
    assert any(case(number).wrong for number in range(2_000))
