"""TLS contexts of both sides, from Kafka's keys."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from logstore.common.errors import ConfigError
from replication.security.config import ClientConfig, TlsConfig

_T = TypeVar("_T")

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def server_context(config: TlsConfig, client_auth: str) -> ssl.SSLContext:
    """The context of listeners with TLS.

    Raises:
        ConfigError: no key or certificate, a file that cannot be read, an unknown value.
    """
    if not (config.ssl_keystore_location or config.ssl_keystore_key):
        raise ConfigError("a listener with TLS takes ssl.keystore.location")
    with _errors():
        context = _context(ssl.PROTOCOL_TLS_SERVER, config)
        context.verify_mode = _known(_CLIENT_AUTH, client_auth, "ssl.client.auth")
        if context.verify_mode != ssl.CERT_NONE:
            _trust(context, config, ssl.Purpose.CLIENT_AUTH)
        return context


def client_context(config: ClientConfig) -> ssl.SSLContext | None:
    """The context of a client's connections; None if ``security.protocol`` is one without TLS.

    The certificate of a broker is always checked, and its host name unless
    ``ssl.endpoint.identification.algorithm`` is empty.

    Raises:
        ConfigError: a file that cannot be read, an unknown value.
    """
    if not config.uses_tls:
        return None
    with _errors():
        context = _context(ssl.PROTOCOL_TLS_CLIENT, config)
        context.check_hostname = bool(config.ssl_endpoint_identification_algorithm)
        _trust(context, config, ssl.Purpose.SERVER_AUTH)
        return context


@contextmanager
def _errors(path: str = "") -> Iterator[None]:
    failure = f"TLS cannot be set up{path and ' with '}{path}"
    try:
        yield
    except ssl.SSLError as error:
        raise ConfigError(
            f"{failure}: {error}. Stores are PEM files; of a PKCS12 store `openssl "
            "pkcs12 -in STORE -out FILE.pem` makes one"
        ) from error
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) else None
        raise ConfigError(f"{failure}: {text or error}") from error


def _context(protocol: int, config: TlsConfig) -> ssl.SSLContext:
    """With the versions, the ciphers and the own key."""
    if config.ssl_keystore_type != "PEM" or config.ssl_truststore_type != "PEM":
        raise ConfigError("ssl.keystore.type and ssl.truststore.type must be PEM")
    versions = [
        _known(_VERSIONS, name, "ssl.enabled.protocols") for name in config.ssl_enabled_protocols
    ]
    if not versions:
        raise ConfigError("ssl.enabled.protocols is empty")
    context = ssl.SSLContext(protocol)
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    password = config.ssl_key_password  # a function of it: OpenSSL never asks at the terminal
    if config.ssl_keystore_key:
        # OpenSSL takes files alone: here one that has no name, and never reaches a disk.
        with os.fdopen(os.memfd_create("key.pem"), "w") as file:
            file.write(f"{config.ssl_keystore_key}\n{config.ssl_keystore_certificate_chain}\n")
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=lambda: password)
    elif config.ssl_keystore_location:
        with _errors(config.ssl_keystore_location):
            context.load_cert_chain(config.ssl_keystore_location, password=lambda: password)
    if config.ssl_cipher_suites:
        context.set_ciphers(":".join(config.ssl_cipher_suites))
    return context


def _trust(context: ssl.SSLContext, config: TlsConfig, purpose: ssl.Purpose) -> None:
    if config.ssl_truststore_certificates:
        context.load_verify_locations(cadata=config.ssl_truststore_certificates)
    elif config.ssl_truststore_location:
        with _errors(config.ssl_truststore_location):
            context.load_verify_locations(config.ssl_truststore_location)
    else:
        context.load_default_certs(purpose)


def _known(table: Mapping[str, _T], name: str, key: str) -> _T:
    if name not in table:
        raise ConfigError(f"{key} = {name!r} is not one of {', '.join(table)}")
    return table[name]
