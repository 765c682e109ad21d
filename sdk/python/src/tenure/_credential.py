"""Where the cluster is and who we are: from arguments, from the environment, or from a credential file.

A credential file, named by ``TENURE_CREDENTIAL``, is JSON: ``endpoints``, ``root_certificate`` (PEM, or the
path of a file beside it) and ``secret``, sent as ``Authorization: Bearer …``. This is the one place that
reads it.
"""

from __future__ import annotations

import json
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEFAULT_ENDPOINT = "127.0.0.1:7400"


@dataclass(frozen=True)
class Credential:
    """What a client needs to be let in."""

    endpoints: tuple[str, ...] = ()
    #: The certificate of the cluster's authority, PEM.
    root_certificate: str | None = None
    #: Sent with every request. It is not shown when this is printed.
    secret: str | None = field(default=None, repr=False)

    def tls(self) -> ssl.SSLContext | None:
        """What checks the nodes' certificates; ``None`` for plain HTTP."""
        if self.root_certificate is None:
            return None
        return ssl.create_default_context(cadata=self.root_certificate)

    def headers(self) -> dict[str, str]:
        """What every request says of us."""
        return {} if self.secret is None else {"Authorization": f"Bearer {self.secret}"}


def read_credential(path: str | os.PathLike[str]) -> Credential:
    """Reads a credential file."""
    where = Path(path)
    try:
        found: Any = json.loads(where.read_text())
    except OSError as error:
        raise ValueError(f"the credential file {where} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"the credential file {where} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"the credential file {where} is not a JSON object")
    root = found.get("root_certificate")
    if isinstance(root, str) and "-----BEGIN" not in root:
        root = (where.parent / root).read_text()
    endpoints = found.get("endpoints", [])
    return Credential(tuple(str(endpoint) for endpoint in endpoints), root, found.get("secret"))


def from_environment() -> Credential:
    """What ``TENURE_CREDENTIAL`` names; ``TENURE_ENDPOINTS`` overrides its endpoints."""
    path = os.environ.get("TENURE_CREDENTIAL")
    credential = read_credential(path) if path else Credential()
    listed = os.environ.get("TENURE_ENDPOINTS") or os.environ.get("TENURE_ENDPOINT")
    endpoints = tuple(word.strip() for word in listed.split(",") if word.strip()) if listed else credential.endpoints
    return Credential(endpoints or (DEFAULT_ENDPOINT,), credential.root_certificate, credential.secret)
