"""What our clients, Spark's links and brokers that ask others believe of a TLS server: one context.

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
    """TLS 1.2 and 1.3. `trusted`: who may have signed the server's certificate; None: whom the
    system trusts. `certificate` is what we show if we are asked. OSError or ValueError when a file
    cannot be used."""
    context = ssl.create_default_context(cafile=trusted or None)
    # As Java and Python before 3.13: authorities of a house seldom have all extensions.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = verify and check_name
    if not verify:
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        # Without any password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key or None, password="")
    return context
