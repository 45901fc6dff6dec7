"""Credentials and TLS of this broker's own requests, to name servers and to its master."""

import ssl

import msgspec

from aerobee.broker.settings import Settings
from aerobee.broker.settings.access import InnerCredentials
from aerobee.protocol.tls import client_context
from aerobee.protocol.wire.signing import Credentials


def inner_credentials(settings: Settings) -> Credentials | None:
    text = settings.inner_client_authentication_credentials
    if not text:
        return None
    inner = msgspec.json.decode(text, type=InnerCredentials)
    return Credentials(inner.access_key, inner.secret_key)


def inner_tls(settings: Settings) -> ssl.SSLContext | None:
    if not settings.tls_enable:
        return None
    return client_context(
        settings.tls_client_trust_cert_path, verify=settings.tls_client_auth_server
    )
