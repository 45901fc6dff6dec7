"""Certificates for tests, made by the openssl command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pair:
    certificate: str
    key: str


class Authority:
    """A certificate authority."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder, self.name = folder, name
        folder.mkdir(parents=True, exist_ok=True)
        self.pair = Pair(str(folder / f"{name}.pem"), str(folder / f"{name}.key"))
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "30", "-subj", f"/CN=aerobee test {name}"),
            *("-keyout", self.pair.key, "-out", self.pair.certificate),
        )

    def sign(
        self,
        name: str,
        hosts: str = "IP:127.0.0.1,DNS:localhost",
        *,
        password: str = "",
        days: int = 30,
        subject: str = "",
    ) -> Pair:
        folder = self.folder
        pair = Pair(str(folder / f"{name}.pem"), str(folder / f"{name}.key"))
        request, extensions = str(folder / f"{name}.csr"), folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={hosts}\n")
        secrecy = ("-passout", f"pass:{password}") if password else ("-nodes",)
        openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", *secrecy),
            *("-subj", subject or f"/CN={name}", "-keyout", pair.key, "-out", request),
        )
        openssl(
            *("x509", "-req", "-in", request, "-CA", self.pair.certificate),
            *("-CAkey", self.pair.key, "-CAcreateserial", "-days", str(days)),
            *("-extfile", str(extensions), "-out", pair.certificate),
        )
        return pair


def openssl(*words: str) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
