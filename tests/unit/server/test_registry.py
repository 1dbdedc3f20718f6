"""The schema registry over HTTP: what it answers, what it writes, what it reads of others.

Real clients of it are in ``tests/clients/test_schema_registry.py``.
"""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import pkgutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from logstore.common.errors import ConfigError
from logstore.common.extras import load
from logstore.manager import compact_directory
from replication import ServedCluster, serve
from replication.common.errors import RequestTimedOutError
from replication.server.serving import HttpListener
from tests.support.leftovers import nothing_left
from tests.support.until import patience, until

pytest.importorskip("avro", reason="the extra `registry` is not installed: avro is missing")
pytest.importorskip("jsonschema", reason="the extra `registry` is not installed")
descriptors = pytest.importorskip(
    "google.protobuf.descriptor_pb2", reason="the extra `registry` is not installed"
)

from replication.server.registry import topic  # noqa: E402

TYPE = "application/vnd.schemaregistry.v1+json"
numbers = itertools.count()


@pytest.fixture(scope="module")
def kafka() -> Iterator[ServedCluster]:
    with serve(registry=HttpListener()) as found:
        yield found


@pytest.fixture
def subject() -> str:
    return f"subject-{next(numbers)}"


def call(
    kafka: ServedCluster, method: str, path: str, body: Any = None, kind: str = TYPE
) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    assert kafka.registry is not None
    connection = http.client.HTTPConnection(*kafka.registry.address, timeout=patience())
    text = body if body is None or isinstance(body, bytes | str) else json.dumps(body)
    connection.request(method, path, text, {"Content-Type": kind} if body is not None else {})
    answer = connection.getresponse()
    found = answer.read()
    connection.close()
    assert answer.getheader("Content-Type") in (TYPE, "application/json")
    return answer.status, json.loads(found)


def ok(kafka: ServedCluster, method: str, path: str, body: Any = None) -> Any:
    status, value = call(kafka, method, path, body)
    assert status == 200, value
    return value


def failure(kafka: ServedCluster, method: str, path: str, body: Any = None) -> int:
    status, value = call(kafka, method, path, body)
    assert str(value["error_code"]).startswith(str(status))
    assert value["message"]
    return int(value["error_code"])


def register(kafka: ServedCluster, subject: str, schema: Any, **more: Any) -> int:
    body = {"schema": schema if isinstance(schema, str) else json.dumps(schema), **more}
    found = ok(kafka, "POST", f"/subjects/{subject}/versions", body)
    return int(found["id"])


def record(name: str, *fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any = "string", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def raw_records(kafka: ServedCluster) -> list[tuple[bytes | None, bytes | None]]:
    return [(each.key, each.value) for each in kafka.read_all("_schemas")[0]]


def test_one_schema_has_one_id(kafka: ServedCluster, subject: str) -> None:
    """Whatever its white space, the order of its properties, and its subject."""
    first = register(kafka, subject, record(subject.replace("-", "_"), field("a"), namespace="n"))
    name = subject.replace("-", "_")
    fields = '[{"type": {"type": "string"}, "name": "a"}]'
    other = f'{{ "fields":{fields},\n "name":"n.{name}","type":"record"}}'
    assert register(kafka, subject, other) == first
    assert register(kafka, f"{subject}-value", other) == first
    assert ok(kafka, "GET", f"/subjects/{subject}/versions") == [1]
    found = ok(kafka, "POST", f"/subjects/{subject}", {"schema": other})
    assert (found["id"], found["version"], found["subject"]) == (first, 1, subject)
    assert ok(kafka, "GET", f"/schemas/ids/{first}/versions") == [
        {"subject": subject, "version": 1},
        {"subject": f"{subject}-value", "version": 1},
    ]
    assert ok(kafka, "GET", f"/schemas/ids/{first}/subjects") == [subject, f"{subject}-value"]
    text = ok(kafka, "GET", f"/schemas/ids/{first}")["schema"]
    assert ok(kafka, "GET", f"/schemas/ids/{first}/schema") == json.loads(text)
    assert ok(kafka, "GET", f"/subjects/{subject}/versions/latest/schema") == json.loads(text)
    assert register(kafka, subject, text) == first
    assert register(kafka, subject, record(name, field("a", doc="b"), namespace="n")) != first


def test_versions(kafka: ServedCluster, subject: str) -> None:
    ids = [
        register(kafka, subject, record("A", *(field(f"f{n}", default="") for n in range(count))))
        for count in range(3)
    ]
    path = f"/subjects/{subject}/versions"
    assert len(set(ids)) == 3
    assert ok(kafka, "GET", path) == [1, 2, 3]
    for text, number in (("latest", 3), ("-1", 3), ("2", 2)):
        found = ok(kafka, "GET", f"{path}/{text}")
        assert (found["version"], found["id"]) == (number, ids[number - 1])
    assert failure(kafka, "GET", f"{path}/4") == 40402
    assert subject in ok(kafka, "GET", "/subjects")
    assert ok(kafka, "GET", f"/subjects?subjectPrefix={subject}") == [subject]


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/subjects/none/versions", None, 40401),
        ("GET", "/subjects/none/versions/1", None, 40401),
        ("DELETE", "/subjects/none", None, 40401),
        ("DELETE", "/subjects/none/versions/1", None, 40401),
        ("POST", "/subjects/none", {"schema": '"int"'}, 40401),
        ("GET", "/schemas/ids/999999", None, 40403),
        ("GET", "/schemas/ids/x", None, 40403),
        ("GET", "/config/none", None, 40408),
        ("DELETE", "/config/none", None, 40401),
        ("GET", "/subjects/none/versions/0", None, 42202),
        ("GET", "/subjects/none/versions/-2", None, 42202),
        ("GET", "/subjects/none/versions/2147483648", None, 42202),
        ("GET", "/subjects/none/versions/x", None, 42202),
        ("POST", "/subjects/none/versions", {"schema": "{"}, 42201),
        ("POST", "/subjects/none/versions", {"schema": ""}, 42201),
        ("POST", "/subjects/none/versions", {"schema": 1}, 42201),
        ("POST", "/subjects/none/versions", {"schema": '{"a":NaN}', "schemaType": "JSON"}, 42201),
        ("POST", "/subjects/none/versions", {"schema": "", "schemaType": "PROTOBUF"}, 42201),
        ("POST", "/subjects/none/versions", {}, 42201),
        ("POST", "/subjects/none/versions", {"schema": '"text"'}, 42201),
        ("POST", "/subjects/none/versions", {"schema": '"\\ud800"'}, 42201),
        ("POST", "/subjects/none/versions", {"schema": "[" * 100_000}, 42201),
        (
            "POST",
            "/subjects/none/versions",
            {"schema": '{"type":' * 900 + '"int"' + "}" * 900},
            42201,
        ),
        ("POST", "/subjects/none/versions", {"schema": '"int"', "schemaType": "XML"}, 42201),
        ("POST", "/subjects/none/versions", {"schema": '"int"', "schemaType": ["A"]}, 42201),
        ("POST", "/subjects/none/versions", {"schema": '{"type":1}', "schemaType": "JSON"}, 42201),
        (
            "POST",
            "/subjects/none/versions",
            {"schema": "message A {}", "schemaType": "PROTOBUF"},
            42201,
        ),
        ("POST", "/subjects/none/versions", {"schema": '"int"', "references": [1]}, 42201),
        ("POST", "/subjects/none/versions", {"schema": '"int"', "references": 1}, 42201),
        (
            "POST",
            "/subjects/none/versions",
            {"schema": '"n.A"', "references": [{"name": "n.A", "subject": "no", "version": 1}]},
            42201,
        ),
        ("POST", "/subjects/none/versions", {"schema": '"int"', "metadata": {}}, 42205),
        ("POST", "/subjects/none/versions", {"schema": '"int"', "id": 7}, 42205),
        ("POST", "/subjects/%01/versions", {"schema": '"int"'}, 42208),
        ("POST", "/subjects/:.c:a/versions", {"schema": '"int"'}, 42208),
        ("PUT", "/config", {"compatibility": "SOME"}, 42203),
        ("PUT", "/config", {}, 42203),
        ("PUT", "/config", {"alias": "a"}, 42205),
        ("PUT", "/config/%01", {"compatibility": "NONE"}, 42208),
        ("POST", "/compatibility/subjects/none/versions/1", {"schema": '"int"'}, 40401),
        ("PUT", "/mode", {"mode": "READONLY"}, 404),
        ("GET", "/elsewhere", None, 404),
        ("GET", "/subjects/%ff/versions", None, 400),
        ("POST", "/subjects/none/versions", "no JSON", 400),
        ("POST", "/subjects/none/versions", "[1]", 400),
        ("POST", "/subjects/none/versions", b"\xff", 400),
        ("POST", "/subjects/none/versions", "[" * 100_000, 400),
    ],
)
def test_what_is_refused(
    kafka: ServedCluster, method: str, path: str, body: Any, code: int
) -> None:
    before = raw_records(kafka)
    assert failure(kafka, method, path, body) == code
    assert raw_records(kafka) == before


def test_a_page_of_another_site_cannot_write(kafka: ServedCluster) -> None:
    """A browser sends these types without asking first."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        status, _ = call(kafka, "POST", "/subjects/x/versions", {"schema": '"int"'}, kind)
        assert status == 415


def test_names_are_percent_encoded(kafka: ServedCluster) -> None:
    register(kafka, "a%2Fb%20%C3%A9+%25", '"int"')
    assert "a/b é+%" in ok(kafka, "GET", "/subjects")
    assert ok(kafka, "GET", "/subjects/a%2Fb%20%C3%A9+%25/versions") == [1]


def test_deletion(kafka: ServedCluster, subject: str) -> None:
    """First softly, then for good; each in its order, and twice never."""
    path = f"/subjects/{subject}"
    schemas = [record("D", *(field(f"f{n}", default="") for n in range(count))) for count in (0, 1)]
    ids = [register(kafka, subject, schema) for schema in schemas]
    assert failure(kafka, "DELETE", f"{path}/versions/1?permanent=true") == 40407
    assert ok(kafka, "DELETE", f"{path}/versions/latest") == 2
    assert failure(kafka, "DELETE", f"{path}/versions/2") == 40406
    assert ok(kafka, "GET", f"{path}/versions") == [1]
    assert ok(kafka, "GET", f"{path}/versions?deleted=true") == [1, 2]
    assert failure(kafka, "GET", f"{path}/versions/2") == 40402
    assert ok(kafka, "GET", f"{path}/versions/2?deleted=true")["deleted"] is True
    assert ok(kafka, "GET", f"/schemas/ids/{ids[1]}")  # data that was written stays readable
    body = {"schema": json.dumps(schemas[1])}
    assert failure(kafka, "POST", path, body) == 40403
    assert ok(kafka, "POST", f"{path}?deleted=true", body)["version"] == 2
    assert register(kafka, subject, schemas[1]) == ids[1]  # again: the next version, the same id
    assert ok(kafka, "GET", f"{path}/versions?deleted=true") == [1, 3]
    ok(kafka, "PUT", f"/config/{subject}", {"compatibility": "NONE"})
    assert failure(kafka, "DELETE", f"{path}?permanent=true") == 40405
    assert ok(kafka, "DELETE", path) == [1, 3]
    assert failure(kafka, "DELETE", path) == 40404
    assert subject not in ok(kafka, "GET", "/subjects")
    assert subject in ok(kafka, "GET", "/subjects?deleted=true")
    assert ok(kafka, "DELETE", f"{path}?permanent=true") == [1, 3]
    assert failure(kafka, "GET", f"{path}/versions?deleted=true") == 40401
    assert failure(kafka, "GET", f"/schemas/ids/{ids[1]}") == 40403
    assert failure(kafka, "GET", f"/config/{subject}") == 40408


def test_pages_of_lists(kafka: ServedCluster, subject: str) -> None:
    """What a client asks for by page, or of what is deleted alone, it gets and no more."""
    for n in range(3):
        register(kafka, f"{subject}-{n}", record("P", field(f"f{n}")))
        schema_id = register(kafka, f"{subject}-{n}", record("P"))
    for place in (f"{subject}-0/versions/1", f"{subject}-1"):
        ok(kafka, "DELETE", f"/subjects/{place}")

    def names(query: str) -> list[str]:
        found = ok(kafka, "GET", f"/subjects?subjectPrefix={subject}&{query}")
        return [each.removeprefix(f"{subject}-") for each in found]

    assert names("offset=0&limit=-1") == ["0", "2"]
    assert names("deleted=true&limit=2") == ["0", "1"]
    assert names("deleted=true&offset=2&limit=2") == ["2"]
    assert names("offset=5") == names("limit=0") == []
    assert names("deletedOnly=true") == ["1"]
    path = f"/subjects/{subject}-0/versions"
    assert ok(kafka, "GET", f"{path}?deletedOnly=true") == [1]
    assert ok(kafka, "GET", f"{path}?deleted=true&offset=1") == [2]
    place = {"subject": f"{subject}-0", "version": 2}
    path = f"/schemas/ids/{schema_id}"
    assert ok(kafka, "GET", f"{path}/versions?subject={subject}-0") == [place]
    assert ok(kafka, "GET", f"{path}/subjects?subject={subject}-1&deletedOnly=true") == [
        f"{subject}-1"
    ]
    assert ok(kafka, "GET", f"{path}/subjects?subject={subject}-1") == []


def test_a_large_schema_is_understood_once(
    kafka: ServedCluster, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a second time by the thread that reads the topic, for which all writes wait."""
    threads: list[str] = []
    for place in ("avro.schema.make_avsc_object", "jsonschema.Draft202012Validator.check_schema"):
        decide = pkgutil.resolve_name(place)

        def noted(*arguments: Any, decide: Any = decide) -> Any:
            threads.append(threading.current_thread().name)
            return decide(*arguments)

        monkeypatch.setattr(place, noted)
    register(kafka, subject, record(subject.replace("-", "_")))
    register(kafka, f"{subject}-j", f'{{"title": "{subject}"}}', schemaType="JSON")
    assert threads
    assert "schema-registry" not in threads


def test_compaction(tmp_path: Path) -> None:
    """What is there stays. No id is given twice, though every trace of its schema is gone."""
    with serve(tmp_path, registry=HttpListener()) as kafka:
        short = {"cleanup.policy": "compact", "segment.ms": 1, "delete.retention.ms": 0}
        kafka.alter_topic("_schemas", short)
        assert [register(kafka, each, f'"{each}"') for each in ("int", "long", "bytes")] == [
            1,
            2,
            3,
        ]
        for subject in ("bytes", "long"):
            ok(kafka, "DELETE", f"/subjects/{subject}")
        ok(kafka, "DELETE", "/subjects/bytes?permanent=true")
        ok(kafka, "PUT", "/config", {"compatibility": "FULL"})
    for _ in range(2):  # tombstones go with the second
        with serve(tmp_path, registry=HttpListener()):
            pass  # begins a segment, so that the one before may be cleaned
        compact_directory(tmp_path / "broker-0", config={"delete.retention.ms": 0})
    with serve(tmp_path, registry=HttpListener()) as kafka:
        keys = [json.loads(key or b"") for key, _ in raw_records(kafka)]
        left = [each["subject"] for each in keys if each["keytype"] == "SCHEMA"]
        assert left == ["int", "long"]
        assert ok(kafka, "GET", "/subjects?deleted=true") == ["int", "long"]
        assert ok(kafka, "GET", "/subjects") == ["int"]
        assert ok(kafka, "GET", "/config") == {"compatibilityLevel": "FULL"}
        assert register(kafka, "new", '"double"') == 4


def test_levels_of_compatibility(kafka: ServedCluster, subject: str) -> None:
    path = f"/config/{subject}"
    assert ok(kafka, "GET", "/config") == {"compatibilityLevel": "BACKWARD"}
    assert ok(kafka, "GET", f"{path}?defaultToGlobal=true") == {"compatibilityLevel": "BACKWARD"}
    assert ok(kafka, "PUT", path, {"compatibility": "full"}) == {"compatibility": "FULL"}
    assert ok(kafka, "GET", path) == {"compatibilityLevel": "FULL"}
    assert ok(kafka, "DELETE", path) == {"compatibilityLevel": "FULL"}
    assert failure(kafka, "GET", path) == 40408


OLD = record("R", field("a"), field("b", default=""))
MORE = record("R", field("a"), field("b", default=""), field("c"))
LESS = record("R", field("b", default=""))
CHANGED = record("R", field("a", "int"), field("b", default=""))
OPTIONAL = record("R", field("a"), field("b", default=""), field("c", default=""))


@pytest.mark.parametrize(
    ("level", "allowed"),
    [
        ("NONE", [MORE, LESS, CHANGED, OPTIONAL]),
        ("BACKWARD", [LESS, OPTIONAL]),
        ("FORWARD", [MORE, OPTIONAL]),
        ("FULL", [OPTIONAL]),
        ("FULL_TRANSITIVE", [OPTIONAL]),
    ],
)
def test_what_may_follow(
    kafka: ServedCluster, subject: str, level: str, allowed: list[Any]
) -> None:
    register(kafka, subject, OLD)
    ok(kafka, "PUT", f"/config/{subject}", {"compatibility": level})
    path = f"/compatibility/subjects/{subject}/versions"
    for schema in (MORE, LESS, CHANGED, OPTIONAL):
        body = {"schema": json.dumps(schema)}
        expected = schema in allowed
        for each in (path, f"{path}/latest", f"{path}/1"):
            assert ok(kafka, "POST", each, body) == {"is_compatible": expected}
        verbose = ok(kafka, "POST", f"{path}?verbose=true", body)
        assert bool(verbose["messages"]) != expected
        if not expected:
            assert failure(kafka, "POST", f"/subjects/{subject}/versions", body) == 40901
    register(kafka, subject, allowed[-1])


@pytest.mark.parametrize(
    ("level", "is_allowed"), [("BACKWARD", True), ("BACKWARD_TRANSITIVE", False)]
)
def test_all_versions_or_the_last(
    kafka: ServedCluster, subject: str, level: str, is_allowed: bool
) -> None:
    """``b`` is a string, then gone, then a number."""
    ok(kafka, "PUT", f"/config/{subject}", {"compatibility": level})
    register(kafka, subject, record("T", field("a"), field("b")))
    register(kafka, subject, record("T", field("a")))
    last = {"schema": json.dumps(record("T", field("a"), field("b", "int", default=0)))}
    status, _ = call(kafka, "POST", f"/subjects/{subject}/versions", last)
    assert status == (200 if is_allowed else 409)


def test_a_comparison_without_end(
    kafka: ServedCluster, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each branch of a union with each of another one."""
    monkeypatch.setattr("replication.server.registry.schemas.COMPARE_S", -1)
    unions = [json.dumps([record(f"{name}{n}") for n in range(30)]) for name in "ab"]
    register(kafka, subject, unions[0])
    assert failure(kafka, "POST", f"/subjects/{subject}/versions", {"schema": unions[1]}) == 42205


FILE = descriptors.FileDescriptorProto(name="a.proto", syntax="proto3")
PROTO = base64.b64encode(FILE.SerializeToString()).decode()
FILE.package = "p"
OTHER_PROTO = base64.b64encode(FILE.SerializeToString()).decode()


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("JSON", '{"type": "object"}', '{"type":"object","title":"a"}'),
        ("PROTOBUF", PROTO, OTHER_PROTO),
    ],
)
def test_what_is_not_compared(
    kafka: ServedCluster, subject: str, kind: str, first: str, second: str
) -> None:
    """Then it is refused, and never said to be compatible."""
    schema_id = register(kafka, subject, first, schemaType=kind)
    assert register(kafka, subject, first, schemaType=kind) == schema_id
    assert ok(kafka, "GET", f"/schemas/ids/{schema_id}")["schemaType"] == kind
    body = {"schema": second, "schemaType": kind}
    for path in ("subjects", "compatibility/subjects"):
        assert failure(kafka, "POST", f"/{path}/{subject}/versions", body) == 42205
    assert failure(kafka, "POST", f"/subjects/{subject}/versions", {"schema": '"int"'}) == 40901
    ok(kafka, "PUT", f"/config/{subject}", {"compatibility": "NONE"})
    assert register(kafka, subject, second, schemaType=kind) != schema_id


def test_the_order_of_properties_of_json_schema(kafka: ServedCluster, subject: str) -> None:
    """Matters, as in Confluent's, unless the request says that it does not."""
    ok(kafka, "PUT", f"/config/{subject}", {"compatibility": "NONE"})
    path = f"/subjects/{subject}/versions?normalize=true"
    texts = ['{"type": "object","title":"t"}', '{"title":"t","type":"object"}']
    assert len({register(kafka, subject, each, schemaType="JSON") for each in texts}) == 2
    bodies = [{"schema": each, "schemaType": "JSON"} for each in texts]
    assert len({ok(kafka, "POST", path, each)["id"] for each in bodies}) == 1


def test_references(kafka: ServedCluster, subject: str) -> None:
    """A chain of three; what others need is not deleted."""
    one, two, three = (f"{subject}-{name}" for name in ("one", "two", "three"))
    register(kafka, one, record("n.One", field("a")))
    to_one = [{"name": "n.One", "subject": one, "version": 1}]
    register(kafka, two, record("n.Two", field("one", "n.One")), references=to_one)
    to_two = [{"name": "n.Two", "subject": two, "version": 1}]
    schema = record("n.Three", field("two", "n.Two"))
    schema_id = register(kafka, three, schema, references=to_two)
    assert register(kafka, three, schema, references=to_two) == schema_id
    assert ok(kafka, "GET", f"/schemas/ids/{schema_id}")["references"] == to_two
    assert failure(kafka, "DELETE", f"/subjects/{one}") == 42206
    assert failure(kafka, "DELETE", f"/subjects/{one}/versions/1") == 42206
    ok(kafka, "DELETE", f"/subjects/{three}")
    ok(kafka, "DELETE", f"/subjects/{two}")
    ok(kafka, "DELETE", f"/subjects/{one}")
    assert failure(kafka, "DELETE", f"/subjects/{one}?permanent=true") == 42206
    register(kafka, one, record("n.One", field("a")))  # the deleted version is still referred to
    assert ok(kafka, "GET", f"/subjects/{one}/versions?deleted=true") == [1, 2]
    ok(kafka, "DELETE", f"/subjects/{one}")
    for each in (three, two, one):
        ok(kafka, "DELETE", f"/subjects/{each}?permanent=true")


def test_a_reference_to_the_latest_version(kafka: ServedCluster, subject: str) -> None:
    """It is that of the moment: what comes later does not change a schema that is registered."""
    one, two = f"{subject}-one", f"{subject}-two"
    register(kafka, one, record("L.One"))
    latest = [{"name": "L.One", "subject": one, "version": -1}]
    schema_id = register(kafka, two, record("L.Two", field("one", "L.One")), references=latest)
    register(kafka, one, record("L.One", field("a", default="")))
    (found,) = ok(kafka, "GET", f"/schemas/ids/{schema_id}")["references"]
    assert found["version"] == 1
    assert failure(kafka, "DELETE", f"/subjects/{one}/versions/1") == 42206
    nowhere = {"schema": '"int"', "references": [{"name": "n", "subject": "none", "version": -1}]}
    assert failure(kafka, "POST", f"/subjects/{two}/versions", nowhere) == 42201


def test_what_is_written(tmp_path: Path) -> None:
    """Byte for byte what Confluent's registry writes, as the keys decide what compaction keeps."""
    with serve(tmp_path, registry=HttpListener()) as kafka:
        register(kafka, "%C3%A9", '"int"')
        ok(kafka, "PUT", "/config", {"compatibility": "NONE"})
        ok(kafka, "PUT", "/config/b", {"compatibility": "FULL"})
        ok(kafka, "DELETE", "/config/b")
        ok(kafka, "DELETE", "/subjects/%C3%A9")
        ok(kafka, "DELETE", "/subjects/%C3%A9?permanent=true")
        found = [
            (key and key.decode(), value and value.decode()) for key, value in raw_records(kafka)
        ]
        tp = kafka.client.partitions("_schemas")
        config = kafka.broker(0).metadata.topic_config("_schemas")
    noop = '{"keytype":"NOOP","magic":0}'
    schema = '{"keytype":"SCHEMA","subject":"é","version":1,"magic":1}'
    assert len(tp) == 1
    assert config == {"cleanup.policy": "compact"}
    assert found == [
        (noop, '{"maxId":0}'),
        (
            schema,
            '{"subject":"é","version":1,"id":1,"schemaType":"AVRO","schema":"\\"int\\"",'
            '"deleted":false}',
        ),
        ('{"keytype":"CONFIG","magic":0}', '{"compatibilityLevel":"NONE"}'),
        (
            '{"keytype":"CONFIG","subject":"b","magic":0}',
            '{"subject":"b","compatibilityLevel":"FULL"}',
        ),
        ('{"keytype":"CONFIG","subject":"b","magic":0}', None),
        (
            '{"keytype":"DELETE_SUBJECT","subject":"é","magic":0}',
            '{"subject":"é","version":1}',
        ),
        (noop, '{"maxId":1}'),
        (schema, None),
    ]


def test_what_another_registry_has_written(kafka: ServedCluster, subject: str) -> None:
    """And what nobody should have: it is passed over, and the rest is served."""

    def put(key: Any, value: Any) -> None:
        kafka.produce(
            "_schemas",
            value if value is None or isinstance(value, bytes) else json.dumps(value).encode(),
            key if isinstance(key, bytes) else json.dumps(key).encode(),
        )

    def schema(number: int, schema_id: Any, text: Any, **more: Any) -> None:
        key = {"keytype": "SCHEMA", "subject": subject, "version": number, "magic": 1}
        put(key, {"subject": subject, "version": number, "id": schema_id, "schema": text, **more})

    base = 100_000 + 100 * next(numbers)
    schema(1, base, '{"type":"record","name":"J","fields":[{"name":"a","type":{"type":"int"}}]}')
    schema(2, base + 1, '"bytes"', deleted=True, md5="x", metadata={"properties": {"a": "b"}})
    schema(3, base, '"null"')  # the id of another schema
    schema(4, "x", '"int"')
    schema(5, base + 2, 7)
    schema(6, base + 3, "no schema, and let pass there")
    schema(8, base + 4, '"int"', references=[{"name": "a", "subject": [], "version": {}}])
    schema(9, base + 0.5, '"int"')
    schema(9.5, base + 5, '"int"')  # type: ignore[arg-type]
    put({"keytype": "SCHEMA", "subject": subject, "version": "7", "magic": 1}, {"id": 1})
    for key in (b"", b"\xff", b"7", b"{}", b'{"keytype":"OTHER"}', b"[" * 100_000):
        put(key, b"x")
        put(key, None)
    put({"keytype": "CONTEXT", "tenant": "default", "context": "c"}, {"context": "c"})
    put({"keytype": "CONFIG", "subject": subject, "magic": 0}, {"compatibilityLevel": "SOME"})
    put({"keytype": "NOOP", "magic": 0}, None)
    put({"keytype": "MODE", "subject": subject, "magic": 0}, {"mode": "READONLY"})
    until(lambda: ok(kafka, "GET", f"/mode/{subject}")["mode"] == "READONLY")
    assert ok(kafka, "GET", f"/subjects/{subject}/versions?deleted=true") == [1, 2, 6]
    assert ok(kafka, "GET", f"/subjects/{subject}/versions") == [1, 6]
    same = {"schema": '{"name":"J","type":"record","fields":[{"type":"int","name":"a"}]}'}
    assert ok(kafka, "POST", f"/subjects/{subject}", same)["id"] == base
    assert register(kafka, f"{subject}-other", same["schema"]) == base
    text = ok(kafka, "GET", f"/subjects/{subject}/versions/1")["schema"]  # as it was written
    assert ok(kafka, "GET", f"/subjects/{subject}-other/versions/1")["schema"] == text
    assert failure(kafka, "POST", f"/subjects/{subject}/versions", {"schema": '"int"'}) == 42205
    put({"keytype": "MODE", "subject": subject, "magic": 0}, None)
    delete = {"keytype": "DELETE_SUBJECT", "subject": subject, "magic": 0}
    put(delete, {"subject": subject, "version": 1})
    until(lambda: ok(kafka, "GET", f"/subjects/{subject}/versions") == [6])
    put(delete, {"subject": subject, "version": 6})
    until(lambda: subject not in ok(kafka, "GET", "/subjects"))
    assert register(kafka, subject, record("After")) > base


def test_a_restart(tmp_path: Path) -> None:
    with serve(tmp_path, registry=HttpListener()) as kafka:
        ids = [register(kafka, f"s{n}", record(f"A{n}")) for n in range(5)]
        ok(kafka, "DELETE", "/subjects/s4")
        ok(kafka, "PUT", "/config/s0", {"compatibility": "NONE"})
    with serve(tmp_path, registry=HttpListener()) as kafka:
        assert [register(kafka, f"s{n}", record(f"A{n}")) for n in range(4)] == ids[:4]
        assert ok(kafka, "GET", "/subjects?deleted=true") == [f"s{n}" for n in range(5)]
        assert ok(kafka, "GET", "/config/s0") == {"compatibilityLevel": "NONE"}
        assert register(kafka, "new", record("New")) == 6
        assert len(raw_records(kafka)) == 5 + 2 + 2 + 1  # two starts, one new schema


def test_of_a_directory_that_is_served_read_only(tmp_path: Path) -> None:
    """Schemas are there for who reads its records; what is registered would be gone."""
    with serve(tmp_path / "old", registry=HttpListener()) as kafka:
        known = register(kafka, "s", record("A"))
    adopted = tmp_path / "old" / "broker-0"
    with serve(adopt=adopted, read_only=True, registry=HttpListener()) as kafka:
        assert json.loads(ok(kafka, "GET", f"/schemas/ids/{known}")["schema"]) == record("A")
        assert ok(kafka, "GET", "/mode") == {"mode": "READONLY"}
        body = {"schema": json.dumps(record("B"))}
        assert failure(kafka, "POST", "/subjects/s/versions", body) == 42205
        assert failure(kafka, "DELETE", "/subjects/s") == 42205
        assert failure(kafka, "PUT", "/config", {"compatibility": "NONE"}) == 42205
    with serve(adopt=adopted, read_only=True, registry=HttpListener()) as kafka:
        assert ok(kafka, "GET", "/subjects") == ["s"]


def test_many_at_once(kafka: ServedCluster, subject: str) -> None:
    """The same schema has one id and one version, others have others."""
    schemas = [record(f"M{n % 4}") for n in range(24)]
    ok(kafka, "PUT", f"/config/{subject}", {"compatibility": "NONE"})
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda schema: register(kafka, subject, schema), schemas))
    assert [len({ids[n] for n in range(k, 24, 4)}) for k in range(4)] == [1] * 4
    assert len(set(ids)) == 4
    assert ok(kafka, "GET", f"/subjects/{subject}/versions") == [1, 2, 3, 4]


def test_without_a_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write fails in its time, reads go on, and the next life of the broker goes on with it."""
    monkeypatch.setattr(topic, "WRITE_S", 0.2)
    with serve(tmp_path, registry=HttpListener()) as kafka:
        first = register(kafka, "a", '"int"')
        kafka.stop(0)
        body = {"schema": '"long"'}
        assert failure(kafka, "POST", "/subjects/b/versions", body) in (50001, 50002)
        assert ok(kafka, "GET", f"/schemas/ids/{first}")
        kafka.start(0)
        until(lambda: call(kafka, "POST", "/subjects/c/versions", {"schema": '"double"'})[0] == 200)
        found = {
            s: ok(kafka, "GET", f"/subjects/{s}/versions/1") for s in ok(kafka, "GET", "/subjects")
        }
        assert len({each["id"] for each in found.values()}) == len(found)


def test_what_is_not_read_back_is_not_acknowledged(
    kafka: ServedCluster, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when somebody else has taken the id meanwhile."""
    assert kafka.registry is not None
    monkeypatch.setattr(kafka.registry._topic, "put", lambda *records: None)
    body = {"schema": json.dumps(record("Lost"))}
    assert failure(kafka, "POST", f"/subjects/{subject}/versions", body) == 50001


def test_a_write_that_nobody_knows_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the log, and not yet applied when the next one begins: that takes another id."""
    with serve(tmp_path, registry=HttpListener()) as kafka:
        assert kafka.registry is not None
        schemas, sent, may_apply = kafka.registry._topic, itertools.count(), threading.Event()
        send_batch, apply = schemas._producer.send_batch, schemas._apply

        def send(*arguments: Any) -> Any:
            number = next(sent)
            if number == 1:
                may_apply.set()
            found = send_batch(*arguments)
            if number == 0:
                raise RequestTimedOutError("no answer")
            return found

        def apply_later(*arguments: Any) -> None:
            may_apply.wait(patience())
            apply(*arguments)

        monkeypatch.setattr(schemas._producer, "send_batch", send)
        monkeypatch.setattr(schemas, "_apply", apply_later)
        body = {"schema": '"int"'}
        assert failure(kafka, "POST", "/subjects/a/versions", body) == 50001
        assert register(kafka, "b", '"long"') == 2
        assert ok(kafka, "GET", "/subjects/a/versions/1")["id"] == 1


def test_a_topic_that_others_would_clean_away(tmp_path: Path) -> None:
    with serve(tmp_path) as kafka:
        kafka.create_topic("_schemas")
    with nothing_left(tmp_path), pytest.raises(ConfigError, match="compact"):
        serve(tmp_path, registry=HttpListener())


def test_without_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, *rest: Any) -> Any:
        return load(f"{name}_that_is_missing", *rest)

    monkeypatch.setattr("replication.server.registry.schemas.load", missing)
    with pytest.raises(ConfigError, match="needs the package avro"):
        serve(registry=HttpListener())


def test_elsewhere_than_on_loopback(tmp_path: Path) -> None:
    with nothing_left(tmp_path), pytest.raises(ConfigError, match="no login"):
        serve(tmp_path, registry=HttpListener("0.0.0.0"))
    with serve() as kafka, pytest.raises(ConfigError, match="no schema registry"):
        _ = kafka.registry_url


def test_an_address_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, nothing_left(tmp_path):
        port = taken.getsockname()[1]
        with pytest.raises(OSError) as refused:
            serve(tmp_path, registry=HttpListener(port=port))
    assert refused.value.filename == f"127.0.0.1:{port}"


def send(kafka: ServedCluster, text: bytes, *more: bytes) -> bytes:
    """The answer to bytes that may be no request."""
    assert kafka.registry is not None
    with socket.create_connection(kafka.registry.address, patience()) as connection:
        connection.sendall(text)
        answer = b""
        for each in more:
            answer += connection.recv(1 << 16)
            connection.sendall(each)
        while found := connection.recv(1 << 16):
            answer += found
        return answer


POST = (
    b"POST /subjects/h/versions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: 1048577\r\n\r\n", 413),
        (b"Content-Length: 99999999999999999999\r\n\r\n", 413),
        (b"Content-Length: -1\r\n\r\n", 400),
        (b"Content-Length: 1_0\r\n\r\n", 400),
        (b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", 411),
        (b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 411),
        (b"\r\n", 400),
        (b"Content-Length: 2\r\n\r\n{}and more", 422),
    ],
)
def test_bodies_that_are_none(kafka: ServedCluster, head: bytes, status: int) -> None:
    assert send(kafka, POST + head).startswith(b"HTTP/1.1 %d " % status)


def test_a_peer_that_expects_an_interim_answer(kafka: ServedCluster, subject: str) -> None:
    body = b'{"schema":"\\"int\\""}'
    head = POST.replace(b"/h/", f"/{subject}/".encode()) + b"Expect: 100-continue\r\n"
    answer = send(kafka, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")


def test_another_sites_name(kafka: ServedCluster) -> None:
    """Its page may have its name resolved to this machine."""
    text = POST.replace(b"localhost", b"evil.example") + b"Content-Length: 2\r\n\r\n{}"
    assert send(kafka, text).startswith(b"HTTP/1.1 421 ")


def test_a_schema_that_is_too_large_for_its_topic(kafka: ServedCluster, subject: str) -> None:
    kafka.alter_topic("_schemas", {"max.message.bytes": 1000})
    body = {"schema": json.dumps(record("L", field("a", doc="x" * 2000)))}
    assert failure(kafka, "POST", f"/subjects/{subject}/versions", body) == 42209
    kafka.alter_topic("_schemas", {})
    assert register(kafka, subject, '"int"')


def test_the_end_of_a_write_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``close`` does not wait for it."""
    kafka = serve(tmp_path, registry=HttpListener())
    kafka.stop(0)
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(call, kafka, "POST", "/subjects/a/versions", {"schema": '"int"'})
        assert kafka.registry is not None
        until(kafka.registry._writing.locked)
        kafka.close()
        error: Callable[[], Any] = outcome.exception
        assert error() is not None or outcome.result()[0] == 500
