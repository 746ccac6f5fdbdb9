"""Certificates of one cluster: an authority made for it, and what that vouches for. Made by `openssl`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import run

NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "3650"]


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as files."""

    file: Path
    key: Path


class Authority:
    """Vouches for servers and clients of one cluster; its files lie in `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self._folder = folder
        self.certificate = Certificate(folder / "ca.crt", folder / "ca.key")
        _request(self.certificate, "/CN=test-cluster-ca")
        # What tokens of service accounts are signed with; nobody has to vouch for it.
        self.service_accounts = Certificate(folder / "accounts.pub", folder / "accounts.key")
        run(["openssl", "ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", self.service_accounts.key])
        run(["openssl", "ec", "-in", self.service_accounts.key, "-pubout", "-out", self.service_accounts.file])

    def issue(self, name: str, subject: str, reached_as: Sequence[str] = ()) -> Certificate:
        """Make a certificate for a subject (`/O=GROUP/CN=USER`); a server says how it is reached (`IP:…`, `DNS:…`)."""
        made = Certificate(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        words = ["-CA", str(self.certificate.file), "-CAkey", str(self.certificate.key)]
        words += ["-addext", "extendedKeyUsage=serverAuth,clientAuth", "-addext", "basicConstraints=CA:FALSE"]
        if reached_as:
            words += ["-addext", f"subjectAltName={','.join(reached_as)}"]
        _request(made, subject, *words)
        return made


def _request(made: Certificate, subject: str, *words: str) -> None:
    run(["openssl", "req", "-x509", *NEW_KEY, "-subj", subject, "-keyout", made.key, "-out", made.file, *words])
