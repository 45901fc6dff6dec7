"""Settings of access control: connections, signatures, rights."""

import os
from dataclasses import dataclass

import msgspec

from aerobee.broker.settings.fields import setting


def _check_codes(value: str) -> str | None:
    if all(part.strip().isdecimal() for part in value.split(",") if part.strip()):
        return None
    return "write request codes with commas between them, for example 105,106"


class InitialUser(msgspec.Struct):
    """initAuthenticationUser."""

    username: str
    password: str


class InnerCredentials(msgspec.Struct, rename="camel"):
    """innerClientAuthenticationCredentials."""

    access_key: str
    secret_key: str


def _check_initial_user(value: str) -> str | None:
    return _check_json(value, InitialUser, '{"username":"...","password":"..."}')


def _check_inner(value: str) -> str | None:
    return _check_json(value, InnerCredentials, '{"accessKey":"...","secretKey":"..."}')


def _check_readable(value: str) -> str | None:
    return None if not value or os.access(value, os.R_OK) else "that file cannot be read"


def _check_json(value: str, kind: type[msgspec.Struct], example: str) -> str | None:
    if not value:
        return None
    try:
        msgspec.json.decode(value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return f"write it as {example}"
    return None


@dataclass(init=False, repr=False, eq=False)  # a part of Settings
class AccessSettings:
    """Users, rights, TLS and limits per client."""

    acl_enable: bool = setting(
        False,
        "Requests must be signed and are checked against users' rights. See docs/security.md.",
    )
    authentication_enabled: bool = setting(
        False, "The same as aclEnable, by RocketMQ 5's name: it checks rights as well."
    )
    authorization_enabled: bool = setting(
        False, "RocketMQ 5's second switch; alone it refuses to start, as it would trust everyone."
    )
    acl_file: str = setting(
        "",
        "File of users and rights; empty: access.yml and plain_acl.yml beside the settings file. "
        "Files below acl/ beside it are read too.",
        ours=True,
    )
    init_authentication_user: str = setting(
        "",
        "A super user to create at the start, unless the files have it.",
        unit="JSON",
        secret=True,
        check=_check_initial_user,
    )
    inner_client_authentication_credentials: str = setting(
        "",
        "Credentials for this broker's own requests to name servers and to its master; a super "
        "user here.",
        unit="JSON",
        secret=True,
        check=_check_inner,
    )
    authentication_whitelist: str = setting(
        "", "Request codes that need neither signature nor rights.", check=_check_codes
    )
    authorization_whitelist: str = setting(
        "", "Request codes for which a signature is enough.", check=_check_codes
    )
    routes_need_signature: bool = setting(
        False, "Requests for a topic's route must be signed; some clients cannot.", ours=True
    )
    slaves_need_signature: bool = setting(
        True,
        "With access control, a slave must authenticate before it gets the log, by its "
        "innerClientAuthenticationCredentials. Apache's slaves cannot; nor can one behind a NAT.",
        ours=True,
    )
    requests_must_be_fresh: bool = setting(
        False,
        "Signed requests must carry their time, number and code, as our SDK's "
        "do, and are accepted once. Other clients cannot; `fresh: true` requires it per account.",
        ours=True,
    )
    request_freshness_millis: int = setting(
        60_000,
        "Largest age of such a request, and difference of the clocks.",
        unit="ms",
        low=1,
        ours=True,
    )
    allow_anonymous: bool = setting(
        False,
        "Listen beyond this machine without access control: anyone who reaches the ports may read "
        "and change everything.",
        ours=True,
    )
    max_connections_per_address: int = setting(
        0, "Connections at a time per address; 0: no limit.", low=0, ours=True
    )

    max_connections_per_user: int = setting(
        0, "Connections at a time per user; 0: no limit.", low=0, ours=True
    )
    max_requests_per_address: int = setting(
        0,
        "Pending requests per address (waiting for the disk or a message); 0: no limit.",
        low=0,
        ours=True,
    )
    max_requests_per_user: int = setting(
        0, "Pending requests per user, over all addresses; 0: no limit.", low=0, ours=True
    )
    max_bytes_per_second_per_address: int = setting(
        0, "Bytes per second from and to one address; 0: no limit.", low=0, ours=True
    )
    max_bytes_per_second_per_user: int = setting(
        0, "Bytes per second from and to one user; 0: no limit.", low=0, ours=True
    )

    # --- TLS
    tls_server_mode: str = setting(
        "permissive",
        "disabled: plain only. permissive: clients choose, once there is a certificate. "
        "enforcing: TLS only.",
        key="tls.server.mode",
        choices=("disabled", "permissive", "enforcing"),
    )
    tls_config_file: str = setting(
        "",
        "A file with the other tls. settings, as RocketMQ's tls.properties.",
        key="tls.config.file",
        upstream="/etc/rocketmq/tls.properties",
        why="only files that are configured are read",
    )
    tls_server_cert_path: str = setting(
        "",
        "Server certificate with its intermediate certificates; PEM.",
        key="tls.server.certPath",
    )
    tls_server_key_path: str = setting("", "Its private key; PEM.", key="tls.server.keyPath")
    tls_server_key_password: str = setting(
        "", "Password of that key.", key="tls.server.keyPassword", secret=True
    )
    tls_server_trust_cert_path: str = setting(
        "",
        "CA certificates for clients' certificates; PEM.",
        key="tls.server.trustCertPath",
    )
    tls_server_need_client_auth: str = setting(
        "none",
        "Whether clients present a certificate; a presented one is always verified.",
        key="tls.server.need.client.auth",
        choices=("none", "optional", "require"),
    )
    tls_enable: bool = setting(
        False,
        "Use TLS to name servers and to the master.",
        key="tls.enable",
    )
    tls_client_auth_server: bool = setting(
        True,
        "Verify their certificates and host names.",
        key="tls.client.authServer",
        upstream="false",
        why="an unverified name server may be an attacker",
    )
    tls_client_trust_cert_path: str = setting(
        "",
        "CA certificates for them; empty: the system's.",
        key="tls.client.trustCertPath",
        check=_check_readable,
    )
