"""The TLS context of everything that connects: clients, Spark's links, brokers to other brokers.

A context is a value; the code that owns a socket uses it."""

import ssl


def client_context(
    trusted: str | None = None,
    *,
    verify: bool = True,
    check_name: bool = True,
    certificate: str | None = None,
    key: str | None = None,
) -> ssl.SSLContext:
    """TLS 1.2 and 1.3. `trusted`: a file of authorities; None: the system's. `certificate`: the
    client's own, if the server asks for one. OSError or ValueError when a file cannot be used."""
    context = ssl.create_default_context(cafile=trusted or None)
    # As Java and Python before 3.13: in-house authorities seldom have all extensions.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = verify and check_name
    if not verify:
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        # Without any password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key or None, password="")
    return context
