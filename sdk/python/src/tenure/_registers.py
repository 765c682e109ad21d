"""Registers: small values in the cluster, which only the holder of a live lease can write if they are guarded."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from ._http import quoted

if TYPE_CHECKING:
    from ._client import Client
    from ._driver import SessionDriver
    from ._lease import Permit

_TIMEOUT = 10.0


@dataclass(frozen=True)
class Register:
    """A register as it was read or written."""

    key: str
    value: bytes | None
    version: int
    create_revision: int
    mod_revision: int
    guard: str | None = None
    session_number: int | None = None

    @property
    def text(self) -> str | None:
        """The value as text."""
        return None if self.value is None else self.value.decode()


class Registers:
    """What can be done with registers. Writes with a permit are refused once its lease is another's."""

    def __init__(self, client: Client, driver: SessionDriver | None = None) -> None:
        self._client = client
        self._driver = driver

    def get(self, key: str, timeout: float = _TIMEOUT) -> Register | None:
        """Reads one register, linearizably; ``None`` if it is not there."""
        from ._errors import Refused

        try:
            answer = self._client._core.read(f"/v1/registers/{quoted(key)}", timeout)
        except Refused as error:
            if error.code == "not_found":
                return None
            raise
        found = _register(answer)
        return found if found.version else None

    def list(self, prefix: str = "", timeout: float = _TIMEOUT) -> list[Register]:
        """All registers whose key begins so, in order."""
        found: list[Register] = []
        after: str | None = None
        while True:
            query = {"prefix": prefix, "limit": "1000", **({"after": after} if after else {})}
            answer = self._client._core.read(f"/v1/registers?{urlencode(query)}", timeout)
            found += [_register(one) for one in answer["registers"]]
            after = answer.get("next")
            if not after:
                return found

    def put(
        self,
        key: str,
        value: bytes | str,
        *,
        permit: Permit | None = None,
        ephemeral: bool = False,
        if_version: int | None = None,
        if_mod_revision: int | None = None,
    ) -> Register:
        """Writes one register. With a permit it is guarded by the permit's lease; the first guarded write binds it."""
        body: dict[str, Any] = {**_value(value), **_guard(permit)}
        if ephemeral:
            body["ephemeral"] = True
        return _register(self._write("PUT", key, body, permit, if_version, if_mod_revision))

    def delete(
        self,
        key: str,
        *,
        permit: Permit | None = None,
        if_version: int | None = None,
        if_mod_revision: int | None = None,
    ) -> None:
        """Removes one register. A delete is a write."""
        self._write("DELETE", key, _guard(permit), permit, if_version, if_mod_revision)

    def put_all(self, values: Mapping[str, bytes | str], *, permit: Permit | None = None) -> int:
        """Writes several registers in one step, all or none. Returns the revision."""
        then = [{"put": {"key": key, **_value(value), **_guard(permit)}} for key, value in values.items()]
        return int(self.write(then=then, permit=permit)["revision"])

    def write(
        self,
        *,
        compares: Sequence[dict[str, Any]] | None = None,
        then: Sequence[dict[str, Any]] | None = None,
        otherwise: Sequence[dict[str, Any]] | None = None,
        permit: Permit | None = None,
    ) -> Any:
        """A transaction as in ``POST /v1/registers:write``. With a permit, not once it is out of time."""
        body: dict[str, Any] = {"compares": compares or [], "then": then or [], "otherwise": otherwise or []}
        return self._send("POST", "/v1/registers:write", body, permit)

    def _write(self, method: str, key: str, body: dict[str, Any], permit: Permit | None, if_version: int | None,
               if_mod_revision: int | None) -> Any:  # fmt: skip
        if if_version is not None:
            body["if_version"] = if_version
        if if_mod_revision is not None:
            body["if_mod_revision"] = if_mod_revision
        return self._send(method, f"/v1/registers/{quoted(key)}", body, permit)

    def _send(self, method: str, path: str, body: dict[str, Any], permit: Permit | None) -> Any:
        driver = self._driver
        if driver is None and permit is not None:
            driver = permit.lease._driver
        if permit is not None:
            permit.check()  # judged at use; the cluster judges once more when the write arrives
        if driver is not None:
            return driver.command(method, path, body)
        end = time.monotonic() + _TIMEOUT
        core = self._client._core
        # Without a session there is no number, so it is sent once: a repetition could write twice.
        return core.command(method, path, body, until=lambda: end - time.monotonic(), repeat=False)[1]


def _guard(permit: Permit | None) -> dict[str, Any]:
    if permit is None:
        return {}
    guard: dict[str, Any] = {"resource": permit.lease.resource, "token": permit.token}
    if permit.lease.slot is not None:
        guard["slot"] = permit.lease.slot
    return guard


def _value(value: bytes | str) -> dict[str, str]:
    if isinstance(value, str):
        return {"value": value}
    return {"value_base64": base64.b64encode(value).decode()}


def _register(answer: Any) -> Register:
    value: bytes | None = None
    if "value_base64" in answer:
        value = base64.b64decode(answer["value_base64"])
    elif answer.get("value") is not None:
        value = str(answer["value"]).encode()
    return Register(
        str(answer.get("key", "")), value, int(answer["version"]), int(answer["create_revision"]),
        int(answer["mod_revision"]), answer.get("guard"), answer.get("session_number"),
    )  # fmt: skip
