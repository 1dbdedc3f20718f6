"""Keys of connections under Kafka's names, and a client's whole configuration.

``read_properties`` takes the text of a ``client.properties``, ``client_properties`` what it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from checkpoints.errors import MalformedCheckpointError
from checkpoints.meta_properties import parse_properties
from logstore.common.config import MAX_INT, Properties, kafka_key
from logstore.common.errors import ConfigError
from replication.common.addresses import split_address

SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
DEFAULT_PORT = 9092


@dataclass(frozen=True, slots=True)
class TlsConfig(Properties):
    """The keys of both sides of TLS; passwords and keys are not in its repr."""

    # A PEM file has a private key and its chain of certificates, or the certificates alone.
    ssl_keystore_type: str = kafka_key("ssl.keystore.type", "PEM")
    ssl_keystore_location: str = kafka_key("ssl.keystore.location", "")
    ssl_keystore_key: str = kafka_key("ssl.keystore.key", "", secret=True)
    ssl_keystore_certificate_chain: str = kafka_key("ssl.keystore.certificate.chain", "")
    ssl_key_password: str = kafka_key("ssl.key.password", "", secret=True)
    ssl_truststore_type: str = kafka_key("ssl.truststore.type", "PEM")
    ssl_truststore_location: str = kafka_key("ssl.truststore.location", "")
    ssl_truststore_certificates: str = kafka_key("ssl.truststore.certificates", "")
    ssl_enabled_protocols: tuple[str, ...] = kafka_key(
        "ssl.enabled.protocols", ("TLSv1.2", "TLSv1.3")
    )
    # Of TLS 1.2, by their OpenSSL names; empty for OpenSSL's choice.
    ssl_cipher_suites: tuple[str, ...] = kafka_key("ssl.cipher.suites", ())


@dataclass(frozen=True, slots=True)
class ConnectConfig(TlsConfig):
    """The keys of all who connect to brokers, brokers included. ``*_ms`` are milliseconds."""

    # The first time of a connection to one broker; it grows with failures up to the other one.
    socket_connection_setup_timeout_ms: int = kafka_key(
        "socket.connection.setup.timeout.ms", 10_000, 1, MAX_INT
    )
    socket_connection_setup_timeout_max_ms: int = kafka_key(
        "socket.connection.setup.timeout.max.ms", 30_000, 1, MAX_INT
    )
    reconnect_backoff_ms: int = kafka_key("reconnect.backoff.ms", 50, 0, MAX_INT)
    reconnect_backoff_max_ms: int = kafka_key("reconnect.backoff.max.ms", 1000, 0, MAX_INT)
    ssl_endpoint_identification_algorithm: str = kafka_key(
        "ssl.endpoint.identification.algorithm", "https"
    )

    def _check(self) -> None:
        super(ConnectConfig, self)._check()
        if self.ssl_endpoint_identification_algorithm.lower() not in ("", "https"):
            raise ConfigError("ssl.endpoint.identification.algorithm is https, or empty for none")


@dataclass(frozen=True, slots=True)
class ClientConfig(ConnectConfig):
    """The keys of every client."""

    bootstrap_servers: tuple[str, ...] = kafka_key("bootstrap.servers", ())
    client_id: str = kafka_key("client.id", "logstore")
    request_timeout_ms: int = kafka_key("request.timeout.ms", 30_000, 1, MAX_INT)
    connections_max_idle_ms: int = kafka_key("connections.max.idle.ms", 540_000, -1)
    # Of one call with all its repeats.
    default_api_timeout_ms: int = kafka_key("default.api.timeout.ms", 60_000, 1, MAX_INT)
    security_protocol: str = kafka_key("security.protocol", "PLAINTEXT")
    sasl_mechanism: str = kafka_key("sasl.mechanism", "")  # Kafka's GSSAPI is not served
    sasl_jaas_config: str = kafka_key("sasl.jaas.config", "", secret=True)
    sasl_username: str = kafka_key("sasl.username", "")
    sasl_password: str = kafka_key("sasl.password", "", secret=True)

    def __post_init__(self) -> None:
        self._check()
        if self.security_protocol not in SECURITY_PROTOCOLS:
            raise ConfigError(
                f"security.protocol = {self.security_protocol!r} is not one of "
                f"{', '.join(SECURITY_PROTOCOLS)}"
            )
        if self.uses_sasl:
            if self.sasl_mechanism not in SASL_MECHANISMS:
                raise ConfigError(
                    f"sasl.mechanism = {self.sasl_mechanism!r} is not one of "
                    f"{', '.join(SASL_MECHANISMS)}"
                )
            self.login()

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL_")

    @property
    def servers(self) -> list[tuple[str, int]]:
        """Host and port of ``bootstrap.servers``.

        Raises:
            ConfigError: one is malformed, or there is none.
        """
        return parse_servers(",".join(self.bootstrap_servers))

    def login(self) -> tuple[str, str]:
        """User and password, of ``sasl.jaas.config`` or else of librdkafka's keys.

        Raises:
            ConfigError: there are none. Its text has nothing of the password.
        """
        user, password = self.sasl_username, self.sasl_password
        if self.sasl_jaas_config:
            user, password = _jaas_login(self.sasl_jaas_config)
        if not user or not password:
            raise ConfigError(
                "a login takes sasl.jaas.config with username and password, or sasl.username and "
                "sasl.password"
            )
        return user, password


def parse_servers(text: str) -> list[tuple[str, int]]:
    """``host:port,host`` as pairs; IPv6 addresses stand in brackets.

    Raises:
        ConfigError: a part is not of that form.
    """
    servers = []
    for part in text.split(","):
        # Kafka takes the name of a protocol before the host, and ignores it.
        part = part.strip().rpartition("://")[2]
        has_port = ":" in part and not part.endswith("]")
        server = split_address(part if has_port else f"{part}:{DEFAULT_PORT}")
        if server is None or not all(server):
            raise ConfigError(f"{part!r} is not HOST:PORT")
        servers.append(server)
    return servers


# --------------------------------------------------------------------------- client.properties


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """The content of a ``client.properties``.

    Attributes:
        config: the keys of every client.
        others: all other keys, such as ``acks``; may hold secrets. Those of ``unknown_keys`` do
            nothing, as in Kafka.
    """

    config: ClientConfig
    others: Mapping[str, str] = field(repr=False)

    def milliseconds(self, key: str, default: int, least: int = 0) -> int:
        """The value of one of the others.

        Raises:
            ConfigError: it is no such number.
        """
        text = self.others.get(key, str(default)).strip()
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_INT))
        if not is_number or not least <= int(text) <= MAX_INT:
            raise ConfigError(f"{key} = {text!r} is no number of milliseconds")
        return int(text)


_LIBRDKAFKA = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.key.pem": "ssl.keystore.key",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
}
"""librdkafka's spelling of keys of ``ClientConfig``."""

# Of producers, consumers and admin clients of Kafka 4.3, without those of ``ClientConfig``.
_KNOWN = """
acks allow.auto.create.topics auto.commit.interval.ms auto.offset.reset batch.size
bootstrap.controllers buffer.memory check.crcs client.dns.lookup client.rack
compression.gzip.level compression.lz4.level compression.type compression.zstd.level
config.providers delivery.timeout.ms enable.auto.commit enable.idempotence
enable.metrics.push exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes
group.id group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms
interceptor.classes internal.throw.on.fetch.stable.offset.unsupported isolation.level
key.deserializer key.serializer linger.ms max.block.ms max.in.flight.requests.per.connection
max.partition.fetch.bytes max.poll.interval.ms max.poll.records max.request.size
metadata.max.age.ms metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms
metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level
metrics.sample.window.ms partition.assignment.strategy partitioner.adaptive.partitioning.enable
partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys receive.buffer.bytes
retries retry.backoff.max.ms retry.backoff.ms
sasl.client.callback.handler.class security.providers send.buffer.bytes session.timeout.ms
share.acknowledgement.mode share.acquire.mode
 ssl.engine.factory.class ssl.keymanager.algorithm
ssl.keystore.password ssl.protocol ssl.provider ssl.secure.random.implementation
ssl.trustmanager.algorithm ssl.truststore.password transaction.timeout.ms
transaction.two.phase.commit.enable transactional.id value.deserializer value.serializer
"""
_KNOWN_PREFIXES = ("sasl.kerberos.", "sasl.login.", "sasl.oauthbearer.")


def known_keys() -> frozenset[str]:
    """Kafka's names of all keys of its clients, but for families that are not served."""
    return frozenset((*_KNOWN.split(), *ClientConfig().to_properties()))


def unknown_keys(properties: Iterable[str]) -> list[str]:
    """Those that no client of Kafka has."""
    known = known_keys()
    return [key for key in properties if key not in known and not key.startswith(_KNOWN_PREFIXES)]


def read_properties(path: str, data: bytes) -> dict[str, str]:
    """The pairs of Java properties text.

    Raises:
        ConfigError: malformed; names the line, and has nothing of a value.
    """
    try:
        pairs = parse_properties(path, data).items()
    except MalformedCheckpointError as error:
        raise ConfigError(f"{path}:{error.line_number}: {error.reason}") from None
    # Two escapes may stand for one character.
    return {
        key: value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        for key, (value, _, _) in pairs
    }


def in_kafkas_words(properties: Mapping[str, str]) -> dict[str, str]:
    """The same, where librdkafka has another word for a key or a value."""
    found: dict[str, str] = {}
    for given, value in properties.items():
        key = _LIBRDKAFKA.get(given, given)
        if key == "security.protocol":
            value = value.strip().upper()
        elif key == "ssl.endpoint.identification.algorithm" and value.strip() == "none":
            value = ""
        found[key] = value
    return found


def client_properties(properties: Mapping[str, str]) -> ClientProperties:
    """
    Args:
        properties: under Kafka's keys, or librdkafka's where they are another word for them.
    Raises:
        ConfigError: a value of a key of ``ClientConfig`` is wrong.
    """
    own = ClientConfig().to_properties().keys()
    found = in_kafkas_words(properties)
    return ClientProperties(
        ClientConfig.from_properties({key: found[key] for key in found if key in own}),
        {key: found[key] for key in found if key not in own},
    )


# ------------------------------------------------------------------------------------------ JAAS

_TOKEN = re.compile(
    r"""(?:\s|//[^\n]*|/\*.*?\*/)* (?:
        "(?P<double>(?:[^"\\\n]|\\.)*)" | '(?P<single>(?:[^'\\\n]|\\.)*)'
        | (?P<word>[\w.$-]+) | (?P<sign>[=;]) | (?P<end>\Z) )""",
    re.DOTALL | re.VERBOSE,
)
_JAAS = re.compile("tt(t=t)*;")  # kinds of tokens
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"}
_MODULES = ("PlainLoginModule", "ScramLoginModule")


def _jaas_login(text: str) -> tuple[str, str]:
    """User and password of ``MODULE required username="…" password="…";``."""
    tokens = _jaas_tokens(text)
    if not _JAAS.fullmatch("".join(kind for kind, _ in tokens)):
        raise ConfigError(
            "sasl.jaas.config is not of the form MODULE required "
            'username="USER" password="PASSWORD";'
        )
    module, _, *rest = (value for _, value in tokens)
    if module.rpartition(".")[2] not in _MODULES:
        raise ConfigError(f"sasl.jaas.config: {module!r} is not one of {', '.join(_MODULES)}")
    options = dict(zip(rest[:-1:3], rest[2::3], strict=True))
    if options.get("tokenauth", "").lower() == "true":
        raise ConfigError("sasl.jaas.config: logins by delegation token are not supported")
    return options.get("username", ""), options.get("password", "")


def _jaas_tokens(text: str) -> list[tuple[str, str]]:
    """Kind and text: ``t`` for text, else the sign. As Java's ``StreamTokenizer`` cuts them."""
    tokens: list[tuple[str, str]] = []
    position = 0
    while match := _TOKEN.match(text, position):
        position = match.end()
        kind, value = str(match.lastgroup), match[str(match.lastgroup)]
        if kind == "end":
            return tokens
        if kind in ("double", "single"):
            value = _ESCAPE.sub(_unescaped, value)
        tokens.append((value if kind == "sign" else "t", value))
    raise ConfigError(f"sasl.jaas.config cannot be read from character {position} on")


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code, 8)) if code.isdigit() and code < "8" else _ESCAPED.get(code, code)
