"""TLS for `mqs://` addresses: trust settings, and errors of the handshake."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final

from aerobee.client.errors import Misuse
from aerobee.protocol.tls import client_context

FULL: Final = "full"  # the certificate is trusted and names the host
CA: Final = "ca"  # it is trusted
NONE: Final = "none"  # any


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The options after the `?` of an mqs:// address."""

    ca: str | None = None  # trusted authorities; None: the system's
    cert: str | None = None  # the client certificate, if the server asks for one
    key: str | None = None
    verify: str = FULL

    def context(self) -> ssl.SSLContext:
        """Misuse says which file cannot be used."""
        try:
            return client_context(
                self.ca,
                verify=self.verify != NONE,
                check_name=self.verify == FULL,
                certificate=self.cert,
                key=self.key,
            )
        except (OSError, ValueError) as error:  # of ssl, too
            reason = getattr(error, "reason", None) or error
            files = {"ca": self.ca, "cert": self.cert, "key": self.key}
            named = ", ".join(f"{name}={path}" for name, path in files.items() if path)
            raise Misuse(f"TLS cannot be set up with {named}: {reason}") from None


def failure_text(error: ssl.SSLError) -> tuple[str, str]:
    """What went wrong with a handshake, and what would help."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message
        if "self-signed" in reason or "self signed" in reason or "issuer" in reason:
            return reason, "give the authority that signed the certificate: mqs://...?ca=FILE"
        if "expired" in reason:
            return reason, "the server needs a new certificate"
        return reason, "the certificate must name this host; verify=ca does not look at the name"
    return str(error.reason or error), "does that port speak TLS? mq:// is without"
