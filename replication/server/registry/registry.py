"""The REST API of a registry.

Reads are of what is committed and applied. One write at a time is decided, written to the topic and
read back, so two that ask for the same schema get one id, and who got an answer finds what was
written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, unquote

from replication.embedded import Cluster
from replication.server.http.http_server import HttpAnswer, HttpRequest, HttpService
from replication.server.registry.schemas import (
    Level,
    ParsedSchema,
    SchemaError,
    SchemaType,
    incompatibilities,
    library,
    parse,
)
from replication.server.registry.state import (
    LATEST,
    Code,
    RegistryError,
    RegistryState,
    Value,
    Version,
    identity,
    type_of,
)
from replication.server.registry.topic import NOOP, WRITE_S, SchemaTopic

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
BODY_MAX = 1 << 20
"""As large as a record of Kafka may be by default."""
ACCEPTED = ("application/json", "application/octet-stream", "application/vnd.schemaregistry")
LIBRARIES = ("avro.compatibility", "jsonschema", "google.protobuf.descriptor_pb2")
MAX_INT = (1 << 31) - 1


class RegistryRequest:
    """A request, taken apart. Raises RegistryError: its path is not UTF-8."""

    def __init__(self, request: HttpRequest) -> None:
        self._request, self._query = request, parse_qs(request.query)
        try:
            self.path = [unquote(p, errors="strict") for p in request.path.strip("/").split("/")]
        except ValueError:
            raise RegistryError(Code.BAD_REQUEST, "the path is not UTF-8") from None
        self.permanent, self.deleted_only = self.flag("permanent"), self.flag("deletedOnly")
        self.deleted = self.flag("deleted") or self.deleted_only

    def text(self, name: str) -> str:
        return self._query.get(name, [""])[-1]

    def flag(self, name: str) -> bool:
        return self.text(name).lower() == "true"

    def number(self, name: str, otherwise: int | None) -> int | None:
        return int(text) if _is_number(text := self.text(name)) else otherwise

    def includes(self, is_deleted: bool) -> bool:
        return is_deleted if self.deleted_only else self.deleted or not is_deleted

    def body(self) -> Value:
        """
        Raises:
            RegistryError: no JSON object, or of a content type that any web page may send.
        """
        if not self._request.content_type.lower().startswith(ACCEPTED):
            raise RegistryError(Code.UNSUPPORTED_MEDIA_TYPE)
        try:
            value = json.loads(self._request.body)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise RegistryError(Code.BAD_REQUEST, "the body is no JSON object")
        return value


class SchemaRegistry(HttpService):
    """Serves the topic ``_schemas`` of a cluster in this process; as ``HttpService``.

    With ``read_only`` all subjects are in mode READONLY.

    Raises:
        ConfigError: a library of the extra is not installed, and as ``SchemaTopic``.
        RegistryError: as ``SchemaTopic``.
    """

    thread_name = "registry-http"
    methods = ("GET", "HEAD", "POST", "PUT", "DELETE")
    body_max = BODY_MAX

    def __init__(self, cluster: Cluster, read_only: bool = False, **options: Any) -> None:
        for each in LIBRARIES:
            library(each)
        self._writing = Lock()
        self._read_only = read_only
        self._topic = SchemaTopic(cluster, read_only)
        try:
            super().__init__(**options)
        except BaseException:
            self._topic.close()
            raise

    def close(self) -> None:
        """Requests that wait for the topic fail first. Idempotent."""
        if not self._is_inherited:
            self._topic.close()
        super().close()

    @contextmanager
    def _reading(self) -> Iterator[RegistryState]:
        with self._topic.lock:
            yield self._topic.state

    @contextmanager
    def _deciding(self, subject: str | None) -> Iterator[RegistryState]:
        """The state, which changes only by what is written within."""
        if not self._writing.acquire(timeout=WRITE_S):
            raise RegistryError(Code.TIMEOUT, "earlier writes have not ended in time")
        try:
            self._topic.apply_pending()
            state = self._topic.state
            if (mode := self._mode(state, subject)) != "READWRITE":
                raise RegistryError(Code.NOT_PERMITTED, f"Subject {subject} is in mode {mode}")
            yield state
        finally:
            self._writing.release()

    def _mode(self, state: RegistryState, subject: str | None) -> Any:
        return "READONLY" if self._read_only else _setting(state.modes, subject, "READWRITE")

    # -- from paths to answers -----------------------------------------------------------------

    def answer(self, request: HttpRequest) -> HttpAnswer:
        status = HTTPStatus.OK
        try:
            asked = RegistryRequest(request)
            value = self._answer(request.method.replace("HEAD", "GET"), asked)
            if isinstance(value, list) and request.method != "DELETE":
                value = value[asked.number("offset", 0) :][: asked.number("limit", None)]
        except RegistryError as error:
            status = HTTPStatus(int(str(error.number)[:3]))
            value = {"error_code": error.number, "message": str(error)}
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        return HttpAnswer(status, CONTENT_TYPE, body)

    def _answer(self, method: str, asked: RegistryRequest) -> Any:
        match method, *asked.path:
            case "GET", "":
                return {}
            case "GET", "schemas", "types":
                return list(SchemaType)
            case "GET", "schemas", "ids", text, *rest:
                return self._of_id(int(text) if _is_number(text) else 0, rest, asked)
            case "GET", "subjects":
                return self._subjects(asked.text("subjectPrefix").removeprefix(":*:"), asked)
            case "GET", "subjects", subject, "versions":
                with self._reading() as state:
                    found = state.versions(subject, deleted=asked.deleted).values()
                    return [each["version"] for each in found if asked.includes(each["deleted"])]
            case "GET", "subjects", subject, "versions", text, *rest if rest in ([], ["schema"]):
                with self._reading() as state:
                    value = state.version(subject, _version(text), deleted=asked.deleted)
                return value["schema"].encode() if rest else _shown(value)
            case "POST", "subjects", subject:
                return self._lookup(subject, asked)
            case "POST", "subjects", subject, "versions":
                return self._register(subject, asked)
            case "DELETE", "subjects", subject:
                return self._delete_subject(subject, permanent=asked.permanent)
            case "DELETE", "subjects", subject, "versions", text:
                return self._delete_version(subject, _version(text), permanent=asked.permanent)
            case "POST", "compatibility", "subjects", subject, "versions", *rest if len(rest) < 2:
                return self._compatibility(subject, _version(rest[0]) if rest else None, asked)
            case _, "config", *rest if len(rest) < 2:
                return self._config(method, rest[0] if rest else None, asked)
            case "GET", "mode", *rest if len(rest) < 2:
                with self._reading() as state:
                    return {"mode": self._mode(state, rest[0] if rest else None)}
        raise RegistryError(Code.NOT_FOUND)

    # -- reading -------------------------------------------------------------------------------

    def _subjects(self, prefix: str, asked: RegistryRequest) -> list[str]:
        with self._reading() as state:
            named = {
                name: not state.live(name) for name in state.subjects if name.startswith(prefix)
            }
            return sorted(name for name, is_deleted in named.items() if asked.includes(is_deleted))

    def _of_id(self, schema_id: int, rest: list[str], asked: RegistryRequest) -> Any:
        with self._reading() as state:
            values = state.of_id(schema_id)
        if not values or rest not in ([], ["schema"], ["subjects"], ["versions"]):
            raise RegistryError(Code.SCHEMA_NOT_FOUND if not values else Code.NOT_FOUND)
        if rest == ["schema"]:
            return values[0]["schema"].encode()
        if not rest:
            left_out = ("subject", "version", "id", "deleted")
            return {key: value for key, value in values[0].items() if key not in left_out}
        wanted = asked.text("subject")
        shown = [v for v in values if wanted in ("", v["subject"]) and asked.includes(v["deleted"])]
        if rest == ["subjects"]:
            return sorted({each["subject"] for each in shown})
        return [{"subject": each["subject"], "version": each["version"]} for each in shown]

    def _lookup(self, subject: str, asked: RegistryRequest) -> Value:
        value, _ = self._parsed(subject, asked)
        with self._reading() as state:
            state.versions(subject, deleted=asked.deleted)
            found = state.find(subject, identity(value), deleted=asked.deleted)
        if found is None:
            raise RegistryError(Code.SCHEMA_NOT_FOUND)
        return _shown(found)

    def _compatibility(self, subject: str, version: int | None, asked: RegistryRequest) -> Value:
        _, new = self._parsed(subject, asked)
        with self._reading() as state:
            earlier = state.live(subject)
            if version is not None and (earlier or version != LATEST):
                earlier = [state.version(subject, version)]
        problems = self._incompatibilities(subject, new, earlier)
        verdict: Value = {"is_compatible": not problems}
        return {**verdict, "messages": problems} if asked.flag("verbose") else verdict

    # -- writing -------------------------------------------------------------------------------

    def _register(self, subject: str, asked: RegistryRequest) -> Value:
        _check_subject(subject)
        value, parsed = self._parsed(subject, asked)
        wanted = identity(value)
        with self._reading() as state:
            found = state.find(subject, wanted)
        if found is None:
            with self._deciding(subject) as state:
                found = state.find(subject, wanted) or self._new(state, subject, value, parsed)
        return _shown(found)

    def _new(self, state: RegistryState, subject: str, value: Value, parsed: ParsedSchema) -> Value:
        wanted, there = identity(value), state.subjects.get(subject, {})
        if problems := self._incompatibilities(subject, parsed, state.live(subject)):
            raise RegistryError(Code.INCOMPATIBLE, problems)
        number, schema_id = max(there, default=0) + 1, state.id_for(wanted)
        if max(number, schema_id) > MAX_INT:
            raise RegistryError(Code.NOT_PERMITTED, "there is no further id or version")
        for same in state.of_id(schema_id)[:1]:  # each has the text that the id had first
            value["schema"] = same["schema"]
        value = {"subject": subject, "version": number, "id": schema_id, **value}
        # Deleted versions of the same schema go, unless somebody needs them.
        gone = [Version(subject, n) for n in there if there[n]["id"] == schema_id]
        needed = state.needed(deleted=True) if gone else ()
        records = [(_key("SCHEMA", *each), None) for each in gone if each not in needed]
        state.expected = wanted
        self._topic.put(*records, (_key("SCHEMA", subject, number), value))
        found = self._topic.state.find(subject, wanted)
        if found is None or found["id"] != schema_id:
            raise RegistryError(Code.STORE, "somebody else has written to the topic meanwhile")
        return found

    def _delete_version(self, subject: str, version: int, *, permanent: bool) -> int:
        with self._deciding(subject) as state:
            value = state.version(subject, version, deleted=True)
            number: int = value["version"]
            if value["deleted"] and not permanent:
                raise RegistryError(Code.VERSION_SOFT_DELETED, subject, number)
            if (subject, number) in state.needed(deleted=permanent):
                raise RegistryError(Code.REFERENCE_EXISTS, number, subject)
            if permanent and not value["deleted"]:
                raise RegistryError(Code.VERSION_NOT_SOFT_DELETED, subject, number)
            if permanent:
                self._remove(state, subject, [number])
            else:
                self._topic.put((_key("SCHEMA", subject, number), {**value, "deleted": True}))
            return number

    def _delete_subject(self, subject: str, *, permanent: bool) -> list[int]:
        with self._deciding(subject) as state:
            there = state.versions(subject, deleted=True)
            numbers = [n for n, value in there.items() if permanent or not value["deleted"]]
            if not numbers:
                raise RegistryError(Code.SUBJECT_SOFT_DELETED, subject)
            needed = state.needed(deleted=permanent, but=subject)
            for number in (n for n in numbers if (subject, n) in needed):
                raise RegistryError(Code.REFERENCE_EXISTS, number, subject)
            if permanent and state.live(subject):
                raise RegistryError(Code.SUBJECT_NOT_SOFT_DELETED, subject)
            if permanent:
                self._remove(state, subject, numbers)
            else:
                until = {"subject": subject, "version": numbers[-1]}
                self._topic.put((_key("DELETE_SUBJECT", subject), until))
            return numbers

    def _remove(self, state: RegistryState, subject: str, numbers: list[int]) -> None:
        """For good. When the topic is compacted nothing says any more which ids were given, so the
        greatest is written down: none is ever that of two schemas."""
        records: list[tuple[Value, Value | None]] = [(NOOP, {"maxId": state.max_id})]
        records += [(_key("SCHEMA", subject, number), None) for number in numbers]
        if len(numbers) == len(state.subjects[subject]):
            records += [(_key("CONFIG", subject), None)] * (subject in state.configs)
        self._topic.put(*records)

    def _config(self, method: str, subject: str | None, asked: RegistryRequest) -> Value:
        if method == "GET":
            with self._reading() as state:
                if subject not in (None, *state.configs) and not asked.flag("defaultToGlobal"):
                    raise RegistryError(Code.CONFIG_NOT_FOUND, subject)
                return {"compatibilityLevel": _level(state, subject)}
        if method == "DELETE":
            with self._deciding(subject) as state:
                if subject not in (None, *state.configs):
                    raise RegistryError(Code.SUBJECT_NOT_FOUND, subject)
                was = _level(state, subject)
                self._topic.put((_key("CONFIG", subject), None))
            return {"compatibilityLevel": was}
        given = {key: value for key, value in asked.body().items() if value is not None}
        level = str(given.get("compatibility", "")).upper()
        if method != "PUT" or set(given) - {"compatibility"}:
            raise RegistryError(Code.NOT_PERMITTED, "only the compatibility can be set")
        if level not in list(Level):
            raise RegistryError(Code.INVALID_COMPATIBILITY, level)
        _check_subject(subject)
        named = {} if subject is None else {"subject": subject}
        with self._deciding(subject):
            self._topic.put((_key("CONFIG", subject), {**named, "compatibilityLevel": level}))
        return {"compatibility": level}

    # -- schemas of requests -------------------------------------------------------------------

    def _parsed(self, subject: str, asked: RegistryRequest) -> tuple[Value, ParsedSchema]:
        """The record of a schema but for its place and id, and the schema itself."""
        body = asked.body()
        kind, text = body.get("schemaType") or SchemaType.AVRO, body.get("schema")
        if kind not in list(SchemaType) or not isinstance(text, str):
            raise RegistryError(Code.INVALID_SCHEMA, f"no schema, or of an unknown type: {kind}")
        if unserved := [key for key in ("metadata", "ruleSet", "id") if body.get(key) is not None]:
            raise RegistryError(Code.NOT_PERMITTED, f"not served: {', '.join(unserved)}")
        references: list[Value] = []
        given = body.get("references") or []
        for each in given if isinstance(given, list) else [given]:
            match each:
                case {"name": str(name), "subject": str(of), "version": int(number)} if (
                    name.isprintable()
                ):
                    references.append({"name": name, "subject": of, "version": int(number)})
                case _:
                    raise RegistryError(Code.INVALID_SCHEMA, "a reference lacks something")
        with self._reading() as state:
            for each in references:  # the latest of now, whatever comes later
                if each["version"] == LATEST and (live := state.live(each["subject"])):
                    each["version"] = live[0]["version"]
            texts = state.texts(references)
        try:
            parsed = parse(SchemaType(kind), text, texts, asked.flag("normalize"))
        except SchemaError as error:
            raise RegistryError(Code.INVALID_SCHEMA, error) from None
        value: Value = {"schemaType": kind}
        if references:
            value["references"] = references
        return {**value, "schema": parsed.text, "deleted": False}, parsed

    def _incompatibilities(
        self, subject: str, new: ParsedSchema, earlier: list[Value]
    ) -> list[str]:
        with self._reading() as state:
            level = _level(state, subject)
            texts = [state.texts(each.get("references") or []) for each in earlier]
        parsed = (
            parse(type_of(value), value["schema"], references)
            for value, references in zip(earlier, texts, strict=True)
        )
        try:
            return incompatibilities(new, parsed, level)
        except SchemaError as error:
            raise RegistryError(Code.NOT_PERMITTED, error) from None


def _setting(settings: dict[str | None, Any], subject: str | None, default: Any) -> Any:
    """That of a subject, else that of all."""
    return settings.get(subject) or settings.get(None) or default


def _level(state: RegistryState, subject: str | None) -> Level:
    config: Value = _setting(state.configs, subject, {})
    return Level(config.get("compatibilityLevel") or Level.BACKWARD)


def _shown(value: Value) -> Value:
    return {"schemaType": SchemaType.AVRO, **value}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 11


def _version(text: str) -> int:
    number = LATEST if text in ("latest", "-1") else int(text) if _is_number(text) else 0
    if number != LATEST and not 0 < number <= MAX_INT:
        raise RegistryError(Code.INVALID_VERSION, text)
    return number


def _check_subject(subject: str | None) -> None:
    """Contexts (``:.name:``) are not served. None is all subjects."""
    if subject is not None and (
        subject in ("", "__GLOBAL", "__EMPTY")
        or subject.startswith(":.")
        or not subject.isprintable()
    ):
        raise RegistryError(Code.INVALID_SUBJECT, subject)


def _key(kind: str, subject: str | None, number: int | None = None) -> Value:
    named = {} if subject is None else {"subject": subject}
    placed = {"magic": 0} if number is None else {"version": number, "magic": 1}
    return {"keytype": kind, **named, **placed}
