"""Where the cluster is and who we are: from arguments, from the environment, or from a credential file.

``TENURE_CREDENTIAL`` names a file as ``tenure auth new`` writes it (endpoints, secret and root certificates
in one text), or a file with a JSON web token, which is read again when it changes. What is presented is sent
as ``Authorization: Bearer …``. This is the one place that reads such files; it never prints a secret.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

DEFAULT_ENDPOINT = "127.0.0.1:7400"
_FILE_BYTES_MAX = 64 << 10
_BEARER = re.compile(r"tenure_[0-9a-f]{16}_[0-9a-f]{64}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


class TokenFile:
    """A JSON web token that somebody else keeps up to date in a file."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._text = text
        self._stamp = _stamp(path)

    def read(self) -> str:
        """The token that is there now. What cannot be read changes nothing: the store says whether it is still good."""
        with self._lock:
            try:
                stamp = _stamp(self._path)
                if stamp != self._stamp:
                    text = self._path.read_text().strip()
                    if _TOKEN.fullmatch(text):
                        self._text, self._stamp = text, stamp
            except (OSError, UnicodeDecodeError):
                pass
            return self._text


@dataclass(frozen=True)
class Credential:
    """What a client needs to find the cluster and to be let in."""

    endpoints: tuple[str, ...] = ()
    #: The certificates of the cluster's root, PEM; ``None`` for a cluster without TLS.
    root_certificate: str | None = None
    #: What is presented: a credential of the cluster, or a token. It is not shown when this is printed.
    secret: str | TokenFile | None = field(default=None, repr=False)
    #: Whose it is, for people.
    name: str = ""
    #: A client certificate: the files of the certificate and of its key, PEM.
    client_certificate: tuple[str, str] | None = None

    def tls(self) -> ssl.SSLContext | None:
        """What checks the nodes' certificates; ``None`` for plain HTTP."""
        if self.root_certificate is None and self.client_certificate is None:
            return None
        context = ssl.create_default_context(cadata=self.root_certificate)
        if self.client_certificate is not None:
            context.load_cert_chain(*self.client_certificate)
        return context

    def headers(self) -> dict[str, str]:
        """What every request says of us."""
        if self.secret is None:
            return {}
        secret = self.secret.read() if isinstance(self.secret, TokenFile) else self.secret
        return {"Authorization": f"Bearer {secret}"}

    def at(self, endpoints: tuple[str, ...]) -> Credential:
        """The same, for other endpoints."""
        return Credential(endpoints, self.root_certificate, self.secret, self.name, self.client_certificate)


def read_credential(path: str | os.PathLike[str]) -> Credential:
    """Reads a credential file, or a file with a JSON web token. Errors never say what stands in it."""
    where = Path(path)
    try:
        mode = where.stat().st_mode
        with open(where, encoding="utf-8") as file:
            text = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"the credential file {where} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ValueError(f"{where} is no credential file: it is not text") from None
    if _TOKEN.fullmatch(text.strip()):
        return Credential(secret=TokenFile(where, text.strip()), name=f"token in {where}")
    credential = parse_credential(text, str(where))
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ValueError(
            f"the credential file {where} can be read by other users (mode {stat.S_IMODE(mode):o}); run "
            f"`chmod 600 {where}`, and replace the credential if others may have read it"
        )
    return credential


def parse_credential(text: str, where: str = "the text") -> Credential:
    """The credential that a text as of ``tenure auth new`` describes."""
    if len(text) > _FILE_BYTES_MAX:
        raise ValueError(f"{where} is no credential file: it has more than {_FILE_BYTES_MAX} bytes")
    lines = [line.rstrip() for line in text.splitlines()]
    version = re.fullmatch(r"tenure-credential:\s*(\d+)", lines[0] if lines else "")
    if version is None:
        raise ValueError(f"{where} is no credential file: its first line is not `tenure-credential: 1`")
    if version[1] != "1":
        raise ValueError(f"{where} is of version {version[1]}, and this release reads version 1; use a newer release")
    fields: dict[str, str] = {}
    roots: list[str] = []
    inside: list[str] | None = None
    for number, line in enumerate(lines[1:], 2):
        if inside is not None:
            inside.append(line)
            if line == _END:
                roots.append("\n".join(inside) + "\n")
                inside = None
            continue
        if not line or line.startswith("#"):
            continue
        if line == _BEGIN:
            inside = [line]
            continue
        key, colon, value = line.partition(":")
        if not colon or key not in ("name", "endpoints", "expires", "credential") or key in fields:
            raise ValueError(f"line {number} of {where} cannot be read")
        fields[key] = value.strip()
    if inside is not None:
        raise ValueError(f"{where} ends inside a certificate")
    for key in ("name", "credential"):
        if key not in fields:
            raise ValueError(f"{where} has no line `{key}:`")
    if not _BEARER.fullmatch(fields["credential"]):
        raise ValueError(f"the line `credential:` of {where} is none: one is `tenure_`, 16 hexadecimal digits, `_` and 64 more")
    endpoints = tuple(word.strip() for word in fields.get("endpoints", "").split(",") if word.strip())
    return Credential(endpoints, "".join(roots) or None, fields["credential"], fields["name"])


def from_environment() -> Credential:
    """What ``TENURE_CREDENTIAL`` names; ``TENURE_ENDPOINTS`` overrides its endpoints.

    ``TENURE_CA`` names the certificates of the cluster's root, if the credential has none; ``TENURE_CERT`` and
    ``TENURE_KEY`` a client certificate.
    """
    path = os.environ.get("TENURE_CREDENTIAL")
    credential = read_credential(path) if path else Credential()
    authority = os.environ.get("TENURE_CA")
    if authority and credential.root_certificate is None:
        credential = replace(credential, root_certificate=Path(authority).read_text())
    certificate, key = os.environ.get("TENURE_CERT"), os.environ.get("TENURE_KEY")
    if certificate and key:
        credential = replace(credential, client_certificate=(certificate, key))
    listed = os.environ.get("TENURE_ENDPOINTS") or os.environ.get("TENURE_ENDPOINT")
    endpoints = tuple(word.strip() for word in listed.split(",") if word.strip()) if listed else credential.endpoints
    return credential.at(endpoints or (DEFAULT_ENDPOINT,))


def _stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns
