"""Straight-line Python for one message in one version: source text, compiled once.

Neighbouring fields of fixed size, and the length in front of what follows them, are one
``struct.Struct``. A variable-length number is read as one byte, and by a call only if it is longer.
Both ends keep the same order: what is a run here is a run there.
"""

from __future__ import annotations

import functools
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any, TypeAlias

from logstore.common.types import Buffer
from replication.protocol.buffers import Gathered, size_of
from replication.protocol.errors import MalformedMessageError, UnencodableMessageError
from replication.protocol.schema import FIXED_SIZES, Element, Field, Message, Struct
from replication.protocol.structures import ZERO_UUID, Structures, default_of

Decoder: TypeAlias = Callable[[memoryview, int], Any]
"""Takes a buffer and the position in it where the message begins; returns the message. What follows
it is allowed after requests only. Raises MalformedMessageError."""

Encoder: TypeAlias = Callable[[Any], Gathered]
"""Takes a message; returns its buffers in order. Raises UnencodableMessageError."""

MAX_ELEMENTS = 250_000
"""Elements of all arrays of one message. An element of three bytes becomes a tuple of a hundred;
with this a hostile frame of 100 MiB costs what a large honest one does."""

COPIED_MAX = 4096
"""Records up to this size, in bytes, are copied behind the fields in front of them; larger ones
are a buffer of their own. A send of few buffers is cheaper than the copy it saves."""

_CODES = {"bool": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "f64": "d", "uuid": "16s"}
_UNPACKED = {"i8": "b", "i16": "h", "i32": "i", "i64": "q"}  # arrays of these are one unpack


class _BadBytesError(ValueError):
    """Inside a decoder: the bytes break a rule; becomes a MalformedMessageError."""


class _BadValueError(ValueError):
    """Inside an encoder: a field breaks a rule; becomes an UnencodableMessageError."""


def read_uvarint(buffer: memoryview, position: int) -> tuple[int, int]:
    """The number at ``position`` and the position after it; at most 5 bytes, 32 bits."""
    value = shift = 0
    while shift < 35:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, position
        shift += 7
    raise _BadBytesError("a variable-length number is longer than 32 bits")


def uvarint(value: int) -> bytes:
    """``value``, which is not negative, with 7 bits a byte, least significant first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


@functools.cache
def _code(text: str, where: str) -> CodeType:
    """Compile a text. It is cached, because versions with the same fields have the same text, and
    this is most of what a codec costs."""
    return compile(text, where, "exec")


class _Source:
    """Lines of Python with their indentation, the constants they use, and fresh names."""

    def __init__(self, message: Message, version: int, structures: Structures) -> None:
        self.version, self.structures = version, structures
        self.flexible = version in message.flexible
        self.message = message
        self.names: dict[str, Any] = {}
        self._lines: list[str] = []
        self._depth = 0
        self._made = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, text: str) -> Iterator[None]:
        self.line(text)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, hint: str) -> str:
        self._made += 1
        return f"{hint}_{self._made}"

    def constant(self, value: object, hint: str) -> str:
        """A name for ``value``, or its literal where it has one."""
        if value is None or isinstance(value, (bool, int, str, bytes)) or value == ():
            return repr(value)
        for name, known in self.names.items():
            if known is value:
                return name
        name = self.name(hint)
        self.names[name] = value
        return name

    def default(self, field: Field) -> str:
        return self.constant(default_of(field, self.structures.by_name), f"default_{field.name}")

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def compile(self, function: str, names: dict[str, Any]) -> Any:
        scope = {**names, **self.names, "version": self.version}
        exec(_code(self.text(), f"<{function} {self.message.name}>"), scope)
        return scope[function]

    def present(self, struct: Struct) -> tuple[list[Field], list[Field]]:
        """Fields of ``struct`` in this version: those in order, and those with a tag."""
        fields = [field for field in struct.fields if self.version in field.versions]
        plain = [field for field in fields if field.tag is None]
        tagged = [field for field in fields if field.tag is not None]
        return plain, sorted(tagged, key=lambda field: field.tag or 0)

    def size_min(self, element: Element) -> int:
        """Least bytes of an array's element, at least 1."""
        if isinstance(element, Struct):
            plain, _ = self.present(element)
            return max(1, sum(map(self._field_min, plain)) + self.flexible)
        if element in FIXED_SIZES:
            return FIXED_SIZES[element]
        return 1 if self.flexible else 2 if element == "str" else 4

    def _field_min(self, field: Field) -> int:
        if field.is_array:
            return 1 if self.flexible else 4
        if isinstance(field.type, Struct) and self.version in field.nullable:
            return 1
        return self.size_min(field.type)


# -- decoding -----------------------------------------------------------------------------------


class _DecoderSource(_Source):
    def __init__(self, message: Message, version: int, structures: Structures) -> None:
        super().__init__(message, version, structures)
        self._run: list[tuple[str, str]] = []  # (format code, name it is read into)
        with self.block("def decode(b, p):"):
            self.line("end = len(b)")
            self.line(f"budget = {MAX_ELEMENTS}")
            with self.block("try:"):
                self._struct(message.body, "message")
                if not message.may_be_longer:
                    with self.block("if p != end:"):
                        self.line('raise bad(f"{end - p} bytes after its end")')
                self.line("return message")
            with self.block("except errors as error:"):
                where = f"{message.name!r}, version, p, reason(error)"
                self.line(f"raise malformed({where}) from error")

    def _fixed(self, code: str, target: str) -> None:
        self._run.append((code, target))

    def _flush(self) -> None:
        """Read the run of fixed fields that has gathered."""
        run, self._run = self._run, []
        if not run:
            return
        if len(run) == 1 and run[0][0] == "B":
            self.line(f"{run[0][1]} = b[p]")
            self.line("p += 1")
            return
        layout = struct.Struct(">" + "".join(code for code, _ in run))
        unpack = self.name("unpack")
        self.names[unpack] = layout.unpack_from
        self.line(f"{', '.join(name for _, name in run)}, = {unpack}(b, p)")
        self.line(f"p += {layout.size}")
        for code, name in run:
            if code == "16s":
                self.line(f"{name} = zero_uuid if {name} == zero_bytes else UUID(bytes={name})")

    def _uvarint(self, target: str) -> None:
        self._fixed("B", target)
        self._flush()
        with self.block(f"if {target} > 127:"):
            self.line(f"{target}, p = read_uvarint(b, p - 1)")

    @contextmanager
    def _sized(self, what: Field, code: str, target: str, nullable: bool) -> Iterator[str]:
        """Read a length; inside the block it is not negative, outside ``target`` is None."""
        size = self.name("n")
        if self.flexible:
            self._uvarint(size)
            self.line(f"{size} -= 1")
        else:
            self._fixed(code, size)
            self._flush()
        with self.block(f"if {size} < 0:"):
            if nullable and self.flexible:
                self.line(f"{target} = None")
            elif nullable:
                self.line(f"if {size} != -1: raise bad('{what.name}: length below -1')")
                self.line(f"{target} = None")
            else:
                self.line(f"raise bad('{what.name}: null or negative length')")
        with self.block("else:"):
            yield size
            self._flush()

    def _field(self, field: Field, target: str) -> None:
        nullable = self.version in field.nullable
        if field.is_array:
            with self._sized(field, "i", target, nullable) as count:
                self._array(field, target, count)
        elif not isinstance(field.type, Struct):
            self._scalar(field, field.type, target, nullable)
        elif nullable and field.tag is None:
            mark = self.name("mark")
            self._fixed("b", mark)
            self._flush()
            with self.block(f"if {mark} == 1:"):
                self._struct(field.type, target)
            with self.block(f"elif {mark} == -1:"):
                self.line(f"{target} = None")
            with self.block("else:"):
                self.line(f"raise bad('{field.name}: neither null nor present')")
        else:
            self._struct(field.type, target)

    def _scalar(self, field: Field, scalar: str, target: str, nullable: bool) -> None:
        if scalar in _CODES:
            self._fixed(_CODES[scalar], target)
            return
        with self._sized(field, "h" if scalar == "str" else "i", target, nullable) as size:
            stop = self.name("stop")
            self.line(f"{stop} = p + {size}")
            self.line(f"if {stop} > end: raise bad('{field.name}: longer than the message')")
            if scalar == "str":
                self.line(f"{target} = str(b[p:{stop}], 'utf-8')")
            elif scalar == "bytes":
                self.line(f"{target} = bytes(b[p:{stop}])")
            else:
                self.line(f"{target} = b[p:{stop}]")
            self.line(f"p = {stop}")

    def _array(self, field: Field, target: str, count: str) -> None:
        least = self.size_min(field.type)
        self.line(f"budget -= {count}")
        with self.block(f"if {count} > (end - p) // {least} or budget < 0:"):
            self.line(f"raise bad('{field.name}: more elements than may be')")
        if isinstance(field.type, str) and field.type in _UNPACKED:
            code = _UNPACKED[field.type]
            self.line(f"{target} = unpack_from(f'>{{{count}}}{code}', b, p)")
            self.line(f"p += {count} * {least}")
            return
        items, item = self.name("items"), self.name("item")
        self.line(f"{items} = []")
        with self.block(f"for _ in range({count}):"):
            if isinstance(field.type, Struct):
                self._struct(field.type, item)
            else:
                self._scalar(field, field.type, item, nullable=False)
                self._flush()
            self.line(f"{items}.append({item})")
        self.line(f"{target} = tuple({items})")

    def _struct(self, layout: Struct, target: str) -> None:
        plain, tagged = self.present(layout)
        locals_ = {field.name: self.name(field.name) for field in (*plain, *tagged)}
        for field in plain:
            self._field(field, locals_[field.name])
        if self.flexible:
            self._tags(tagged, locals_)
        self._flush()
        values = [locals_.get(field.name) or self.default(field) for field in layout.fields]
        made = self.constant(self.structures.by_name[layout.name], layout.name)
        self.line(f"{target} = new({made}, ({''.join(value + ', ' for value in values)}))")

    def _tags(self, tagged: list[Field], locals_: dict[str, str]) -> None:
        count, last, tag, size, stop = map(self.name, ("tags", "last", "tag", "size", "stop"))
        self._uvarint(count)
        for field in tagged:
            self.line(f"{locals_[field.name]} = {self.default(field)}")
        with self.block(f"if {count}:"):
            self.line(f"if {count} > (end - p) // 2: raise bad('more tagged fields than may be')")
            self.line(f"{last} = -1")
            with self.block(f"for _ in range({count}):"):
                self._uvarint(tag)
                self._uvarint(size)
                self.line(f"{stop} = p + {size}")
                self.line(f"if {stop} > end: raise bad('a tagged field ends after the message')")
                self.line(f"if {tag} <= {last}: raise bad('tags do not ascend')")
                self.line(f"{last} = {tag}")
                for number, field in enumerate(tagged):
                    with self.block(f"{'el' if number else ''}if {tag} == {field.tag}:"):
                        self._field(field, locals_[field.name])
                        self._flush()
                        wrong = f"raise bad('{field.name}: not of the size that its tag has')"
                        self.line(f"if p != {stop}: {wrong}")
                if tagged:
                    with self.block("else:"):
                        self.line(f"p = {stop}")
                else:
                    self.line(f"p = {stop}")


_DECODE_ERRORS = (IndexError, struct.error, ValueError)


def _reason(error: Exception) -> str:
    if isinstance(error, _BadBytesError):
        return str(error)
    if isinstance(error, UnicodeDecodeError):
        return "a text is not UTF-8"
    return "the message is cut short"


def decoder_source(message: Message, version: int, structures: Structures) -> str:
    """The Python text of a decoder, to be looked at."""
    return _DecoderSource(message, version, structures).text()


def compile_decoder(message: Message, version: int, structures: Structures) -> Decoder:
    """A function from bytes to a message; it raises MalformedMessageError."""
    names = {
        "new": tuple.__new__,
        "bad": _BadBytesError,
        "errors": _DECODE_ERRORS,
        "malformed": MalformedMessageError,
        "reason": _reason,
        "read_uvarint": read_uvarint,
        "unpack_from": struct.unpack_from,
        "UUID": uuid.UUID,
        "zero_uuid": ZERO_UUID,
        "zero_bytes": ZERO_UUID.bytes,
    }
    made: Decoder = _DecoderSource(message, version, structures).compile("decode", names)
    return made


# -- encoding -----------------------------------------------------------------------------------


class _EncoderSource(_Source):
    def __init__(self, message: Message, version: int, structures: Structures) -> None:
        super().__init__(message, version, structures)
        self._run: list[tuple[str, str]] = []  # (format code, expression that is written)
        with self.block("def encode(message):"):
            self.line("out = []")
            self.line("w = bytearray()")
            with self.block("try:"):
                self._struct(message.body, "message")
                self._flush()
            with self.block("except errors as error:"):
                where = f"{message.name!r}, version, str(error)"
                self.line(f"raise unencodable({where}) from error")
            self.line("if w or not out: out.append(w)")
            self.line("return out")

    def _fixed(self, code: str, value: str) -> None:
        self._run.append((code, value))

    def _flush(self) -> None:
        run, self._run = self._run, []
        if not run:
            return
        if all((code, value) == ("B", "0") for code, value in run):
            self.line(f"w += {bytes(len(run))!r}")
            return
        pack = self.name("pack")
        self.names[pack] = struct.Struct(">" + "".join(code for code, _ in run)).pack
        self.line(f"w += {pack}({', '.join(value for _, value in run)})")

    def _length(self, code: str, size: str) -> None:
        """Write a length, −1 for null."""
        if not self.flexible:
            self._fixed(code, size)
            self._flush()
            return
        self._flush()
        self._uvarint(f"{size} + 1")

    def _uvarint(self, value: str) -> None:
        number = self.name("n")
        self.line(f"{number} = {value}")
        self.line(f"if {number} < 128: w.append({number})")
        self.line(f"else: w += uvarint({number})")

    def _field(self, field: Field, value: str) -> None:
        nullable = self.version in field.nullable
        if field.is_array:
            self._array(field, value, nullable)
        elif not isinstance(field.type, Struct):
            self._scalar(field.type, value, nullable)
        elif nullable and field.tag is None:
            self._flush()
            with self.block(f"if {value} is None:"):
                self.line("w += b'\\xff'")
            with self.block("else:"):
                self.line("w += b'\\x01'")
                self._struct(field.type, value)
                self._flush()
        else:
            self._struct(field.type, value)

    def _scalar(self, scalar: str, value: str, nullable: bool) -> None:
        if scalar == "uuid":
            self._fixed("16s", f"{value}.bytes")
        elif scalar in _CODES:
            self._fixed(_CODES[scalar], value)
        else:
            self._bytes(scalar, value, nullable)

    def _bytes(self, scalar: str, value: str, nullable: bool) -> None:
        size, data = self.name("size"), self.name("data")
        encoded = f"{value}.encode()" if scalar == "str" else value
        measured = f"size_of({data})" if scalar == "records" else f"len({data})"
        if nullable:
            self.line(f"if {value} is None: {data}, {size} = b'', -1")
            with self.block("else:"):
                self.line(f"{data} = {encoded}")
                self.line(f"{size} = {measured}")
        else:
            self.line(f"{data} = {encoded}")
            self.line(f"{size} = {measured}")
        self._length("h" if scalar == "str" else "i", size)
        if scalar != "records":
            self.line(f"w += {data}")
            return
        with self.block(f"if {size} <= {COPIED_MAX} and isinstance({data}, buffers):"):
            self.line(f"w += {data}")
        with self.block("else:"):
            self.line("out.append(w)")
            self.line(f"out.append({data})")
            self.line("w = bytearray()")

    def _array(self, field: Field, value: str, nullable: bool) -> None:
        count, items, item = self.name("count"), self.name("items"), self.name("item")
        if nullable:
            self.line(f"if {value} is None: {items}, {count} = (), -1")
            self.line(f"else: {items}, {count} = {value}, len({value})")
        else:
            self.line(f"{items}, {count} = {value}, len({value})")
        self._length("i", count)
        if isinstance(field.type, str) and field.type in _UNPACKED:
            code = _UNPACKED[field.type]
            self.line(f"if {items}: w += pack(f'>{{{count}}}{code}', *{items})")
            return
        with self.block(f"for {item} in {items}:"):
            if isinstance(field.type, Struct):
                self._struct(field.type, item)
            else:
                self._scalar(field.type, item, nullable=False)
            self._flush()

    def _struct(self, layout: Struct, value: str) -> None:
        plain, tagged = self.present(layout)
        locals_ = {field.name: self.name(field.name) for field in layout.fields}
        if locals_:
            self.line(f"{', '.join(locals_.values())}, = {value}")
        for field in layout.fields:
            if self.version not in field.versions and field.is_needed:
                with self.block(f"if {self._is_set(field, locals_[field.name])}:"):
                    self.line(f"raise bad('{field.name} is set, this version has no such field')")
        for field in plain:
            self._field(field, locals_[field.name])
        if self.flexible and tagged:
            self._tags(tagged, locals_)
        elif self.flexible:
            self._fixed("B", "0")

    def _is_set(self, field: Field, value: str) -> str:
        if field.is_array and field.default is not None:
            return f"{value} is None or len({value})"
        return f"{value} != {self.default(field)}"

    def _tags(self, tagged: list[Field], locals_: dict[str, str]) -> None:
        count, data, outer = self.name("tags"), self.name("data"), self.name("outer")
        self._flush()
        self.line(f"{count}, {data} = 0, b''")
        for field in tagged:
            with self.block(f"if {self._is_set(field, locals_[field.name])}:"):
                self.line(f"{outer}, w = w, bytearray()")
                self._field(field, locals_[field.name])
                self._flush()
                tag = self.constant(uvarint(field.tag or 0), "tag")
                self.line(f"{data} += {tag} + uvarint(len(w)) + w")
                self.line(f"{count}, w = {count} + 1, {outer}")
        self.line(f"w += uvarint({count}) + {data}")


_ENCODE_ERRORS = (AttributeError, TypeError, ValueError, OverflowError, struct.error)


def compile_encoder(message: Message, version: int, structures: Structures) -> Encoder:
    """A function from a message to its buffers; it raises UnencodableMessageError."""
    names = {
        "bad": _BadValueError,
        "errors": _ENCODE_ERRORS,
        "unencodable": UnencodableMessageError,
        "uvarint": uvarint,
        "size_of": size_of,
        "pack": struct.pack,
        "buffers": (bytes, bytearray, memoryview),
    }
    made: Encoder = _EncoderSource(message, version, structures).compile("encode", names)
    return made


def joined(buffers: Iterable[Any]) -> bytes:
    """The buffers as one; TypeError if one lies in a file."""
    parts: list[Buffer] = list(buffers)
    return b"".join(parts)
