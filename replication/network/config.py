"""The keys of the network under Kafka's names; most of them are limits (W-232)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from logstore.common.config import MAX_INT, MAX_LONG, kafka_key
from logstore.common.errors import ConfigError
from logstore.storage.local import LocalStorage
from logstore.storage.paths import absolute_path
from replication.security.config import SASL_MECHANISMS, ConnectConfig

BY_CERTIFICATE = "certificate"
IDENTITIES = ("none", BY_CERTIFICATE)


@dataclass(frozen=True, slots=True)
class NetworkConfig(ConnectConfig):
    """Limits and threads. ``*_ms`` are milliseconds, ``*_bytes`` bytes, rates are per second.

    Where a default is not Kafka's, the comment says why.
    """

    # Kafka takes a listener of clients where there is no name; here it is none (W-212).
    inter_broker_listener_name: str = kafka_key("inter.broker.listener.name", "")
    # Kafka's 3 share a processor; ours would share one interpreter lock.
    num_network_threads: int = kafka_key("num.network.threads", 1, 1, 64)
    num_io_threads: int = kafka_key("num.io.threads", 8, 1, 1024)
    queued_max_requests: int = kafka_key("queued.max.requests", 500, 1)
    # Kafka's −1 is no bound: 64 MiB keep a broker small whatever its clients send.
    queued_max_request_bytes: int = kafka_key("queued.max.request.bytes", 64 << 20, -1)
    socket_request_max_bytes: int = kafka_key("socket.request.max.bytes", 100 << 20, 1, MAX_INT)
    # Kafka's 102,400 switch off the growth of buffers with the speed of the line; −1 leaves it on.
    socket_send_buffer_bytes: int = kafka_key("socket.send.buffer.bytes", -1, -1, MAX_INT)
    socket_receive_buffer_bytes: int = kafka_key("socket.receive.buffer.bytes", -1, -1, MAX_INT)
    socket_listen_backlog_size: int = kafka_key("socket.listen.backlog.size", 50, 1, MAX_INT)
    connections_max_idle_ms: int = kafka_key("connections.max.idle.ms", 600_000, -1)
    max_connections: int = kafka_key("max.connections", MAX_INT, 0, MAX_INT)
    max_connections_per_ip: int = kafka_key("max.connections.per.ip", MAX_INT, 0, MAX_INT)
    # ``host:count`` pairs, which go before the bound for all addresses.
    max_connections_per_ip_overrides: tuple[str, ...] = kafka_key(
        "max.connections.per.ip.overrides", ()
    )
    max_connection_creation_rate: int = kafka_key("max.connection.creation.rate", MAX_INT, 1)
    # Ours: Kafka has it as a quota of the entity ``ip``, not as a key.
    max_connection_creation_rate_per_ip: int = kafka_key(
        "max.connection.creation.rate.per.ip", MAX_INT, 1
    )
    connection_failed_authentication_delay_ms: int = kafka_key(
        "connection.failed.authentication.delay.ms", 100, 0
    )
    # Ours: Kafka has only the idle time. A frame that has begun must bring a byte in this time. It
    # must end in this time plus what ``MIN_BYTES_PER_MS`` allows for its size.
    socket_frame_timeout_ms: int = kafka_key("socket.frame.timeout.ms", 30_000, 1)
    # The same for a reader and its answer.
    socket_send_timeout_ms: int = kafka_key("socket.send.timeout.ms", 60_000, 1)

    # Bytes a second of each client id, as Kafka had them before its quotas became dynamic.
    quota_producer_default: int = kafka_key("quota.producer.default", MAX_LONG, 1)
    quota_consumer_default: int = kafka_key("quota.consumer.default", MAX_LONG, 1)
    quota_window_num: int = kafka_key("quota.window.num", 11, 2)
    quota_window_size_seconds: int = kafka_key("quota.window.size.seconds", 1, 1)
    sasl_enabled_mechanisms: tuple[str, ...] = kafka_key(
        # Kafka's default is GSSAPI, which is not served.
        "sasl.enabled.mechanisms",
        tuple(SASL_MECHANISMS),
    )
    # Of a request before the login.
    sasl_server_max_receive_size: int = kafka_key(
        "sasl.server.max.receive.size", 512 << 10, 1, MAX_INT
    )
    # Of this broker's logins to others; Kafka's default is GSSAPI.
    sasl_mechanism_inter_broker_protocol: str = kafka_key(
        "sasl.mechanism.inter.broker.protocol", "SCRAM-SHA-512"
    )
    ssl_client_auth: str = kafka_key("ssl.client.auth", "none")
    # Ours: who is a broker on the listener of brokers, and which broker.
    broker_principals: tuple[str, ...] = kafka_key("broker.principals", ())
    broker_identity: str = kafka_key("broker.identity", "none")

    def with_absolute_paths(self) -> NetworkConfig:
        """The same, for listeners that are opened again wherever the process is by then."""

        def absolute(path: str) -> str:
            return path and absolute_path(LocalStorage(), path)

        return replace(
            self,
            ssl_keystore_location=absolute(self.ssl_keystore_location),
            ssl_truststore_location=absolute(self.ssl_truststore_location),
        )

    def __post_init__(self) -> None:
        self._check()
        between_brokers = self.sasl_mechanism_inter_broker_protocol
        for key, mechanisms in (
            ("sasl.enabled.mechanisms", self.sasl_enabled_mechanisms),
            ("sasl.mechanism.inter.broker.protocol", (between_brokers,)),
        ):
            unknown = set(mechanisms) - set(SASL_MECHANISMS)
            if unknown:
                raise ConfigError(
                    f"{key}: {', '.join(sorted(unknown))} is not one of "
                    f"{', '.join(SASL_MECHANISMS)}"
                )
        if self.broker_identity not in IDENTITIES:
            raise ConfigError(
                f"broker.identity: {self.broker_identity!r} is not one of {', '.join(IDENTITIES)}"
            )
