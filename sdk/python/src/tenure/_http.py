"""One exchange with one node, and which node to ask next. It knows no lease rule.

An exchange ends in one of three ways: an answer (also a refusal), `Unreachable` (nothing was sent) or
`Unanswered` (it may have been done). Connections are kept and shared by all threads of a client.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

from ._credential import Credential
from ._errors import Refused, Unanswered, Unreachable, refused

_CONNECT_WITHIN = 2.0
_IDLE_MAX = 16
_ANSWER_BYTES_MAX = 64 << 20


class Endpoint:
    """Where one node serves, and the connections to it that nobody uses at the moment."""

    def __init__(self, text: str, tls: ssl.SSLContext | None) -> None:
        split = urllib.parse.urlsplit(text if "//" in text else f"//{text}")
        if split.hostname is None:
            raise ValueError(f"{text!r} is no endpoint; write HOST:PORT")
        if split.scheme == "https" and tls is None:
            tls = ssl.create_default_context()
        self.host = split.hostname
        self.port = split.port or 7400
        self.tls = None if split.scheme == "http" else tls
        self.idle: list[http.client.HTTPConnection] = []

    @property
    def name(self) -> str:
        """The endpoint as people write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def connect(self, timeout: float) -> http.client.HTTPConnection:
        """A new connection."""
        connection: http.client.HTTPConnection
        if self.tls is not None:
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=self.tls)
        else:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


class Attempt:
    """An exchange under way, which another thread can hang up on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.hung_up = False

    def using(self, sock: socket.socket | None) -> None:
        """The socket that the exchange uses now."""
        with self._lock:
            self._socket = sock
            if self.hung_up and sock is not None:
                _shut(sock)

    def hang_up(self) -> None:
        """Ends the exchange at once; what was sent may have been done."""
        with self._lock:
            self.hung_up = True
            if self._socket is not None:
                _shut(self._socket)


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # It has ended by itself.


class Transport:
    """The endpoints of a cluster. Any node answers, so the one that answered last is asked first."""

    def __init__(self, credential: Credential) -> None:
        self._tls = credential.tls()
        self._credential = credential
        self._lock = threading.Lock()
        self._endpoints = [Endpoint(text, self._tls) for text in credential.endpoints]
        if not self._endpoints:
            raise ValueError("a client needs at least one endpoint")
        self._given = {(endpoint.host, endpoint.port) for endpoint in self._endpoints}
        self._first = random.randrange(len(self._endpoints))
        self._closed = False
        #: For tests: may delay, drop or fail an exchange.
        self.disturb: Callable[[str, str, Endpoint], str | None] | None = None

    @property
    def count(self) -> int:
        """How many endpoints are known."""
        return len(self._endpoints)

    def endpoint(self, another: Endpoint | None = None) -> Endpoint:
        """The usual endpoint; with ``another``, one that is not this."""
        with self._lock:
            if another is not None and self._endpoints[self._first] is another:
                self._first = (self._first + 1) % len(self._endpoints)
            return self._endpoints[self._first]

    def endpoints(self) -> list[str]:
        """All that are known, the usual one first."""
        with self._lock:
            turned = self._endpoints[self._first :] + self._endpoints[: self._first]
            return [endpoint.name for endpoint in turned]

    def follow(self, addresses: list[str]) -> None:
        """The members of the cluster, as a node lists them: new ones are added, those that were given stay."""
        with self._lock:
            wanted = [Endpoint(address, self._tls) for address in addresses if address]
            places = {(endpoint.host, endpoint.port) for endpoint in wanted}
            used = self._endpoints[self._first]
            kept = [e for e in self._endpoints if (e.host, e.port) in places or (e.host, e.port) in self._given]
            known = {(endpoint.host, endpoint.port) for endpoint in kept}
            kept += [endpoint for endpoint in wanted if (endpoint.host, endpoint.port) not in known]
            self._endpoints = kept
            self._first = kept.index(used) if used in kept else 0

    def exchange(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        body: Any = None,
        session: str | None = None,
        timeout: float = 3.0,
        attempt: Attempt | None = None,
    ) -> tuple[int, Any]:
        """Asks one node once. Returns status and answer of a success; raises `Refused` for a no."""
        connection = self._connection(endpoint, timeout)
        headers = self._headers(session)
        sent = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        keep = False
        fault = self.disturb(method, path, endpoint) if self.disturb else None
        try:
            if attempt is not None:
                attempt.using(connection.sock)
            if fault == "unreachable":
                raise Unreachable(f"{endpoint.name}: cut off by the test")
            connection.request(method, path, sent, headers)
            answer = connection.getresponse()
            data = answer.read(_ANSWER_BYTES_MAX)
            if fault == "drop":
                raise TimeoutError("dropped by the test")
            keep = not answer.will_close
        except (OSError, http.client.HTTPException) as error:
            raise Unanswered(f"{endpoint.name}: {error or type(error).__name__}", "unknown") from error
        finally:
            if attempt is not None:
                attempt.using(None)
            self._give_back(endpoint, connection, keep)
        try:
            found = json.loads(data) if data else {}
        except ValueError as error:
            if answer.status < 300:
                raise Unanswered(f"{endpoint.name}: an answer that is not JSON", "unknown") from error
            found = None
        if answer.status >= 300:
            raise refused(answer.status, found)
        return answer.status, found

    def stream(
        self, endpoint: Endpoint, path: str, session: str | None, silence: float, attempt: Attempt
    ) -> Iterator[tuple[str, str, Any]]:
        """Server-sent events of one node: kind, id and data of each message. Ends when the node ends it."""
        connection = self._connection(endpoint, silence, fresh=True)
        headers = self._headers(session)
        try:
            attempt.using(connection.sock)
            connection.request("GET", path, None, {**headers, "Accept": "text/event-stream"})
            answer = connection.getresponse()
            if answer.status >= 300:
                try:
                    found = json.loads(answer.read(_ANSWER_BYTES_MAX))
                except ValueError:
                    found = None
                raise refused(answer.status, found)
            yield ("open", "", None)
            yield from _events(answer)
        except (OSError, http.client.HTTPException) as error:
            raise Unanswered(f"{endpoint.name}: {error or type(error).__name__}", "not_applied") from error
        finally:
            attempt.using(None)
            connection.close()

    def _headers(self, session: str | None) -> dict[str, str]:
        headers = {"Content-Type": "application/json", **self._credential.headers()}
        if session is not None:
            headers["Tenure-Session"] = session
        return headers

    def _connection(self, endpoint: Endpoint, timeout: float, fresh: bool = False) -> http.client.HTTPConnection:
        with self._lock:
            connection = endpoint.idle.pop() if endpoint.idle and not fresh else None
        while connection is not None:
            # A node that went away has closed it; finding that out costs nothing and spares an unknown outcome.
            if connection.sock is not None and not _is_over(connection.sock):
                connection.sock.settimeout(timeout)
                return connection
            connection.close()
            with self._lock:
                connection = endpoint.idle.pop() if endpoint.idle else None
        try:
            connection = endpoint.connect(min(timeout, _CONNECT_WITHIN))
        except OSError as error:
            raise Unreachable(f"{endpoint.name}: {error}") from error
        connection.sock.settimeout(timeout)
        return connection

    def _give_back(self, endpoint: Endpoint, connection: http.client.HTTPConnection, keep: bool) -> None:
        with self._lock:
            if keep and not self._closed and len(endpoint.idle) < _IDLE_MAX:
                endpoint.idle.append(connection)
                return
        connection.close()

    def forked(self) -> None:
        """Called in a fork of the process: the connections are the parent's."""
        self._lock = threading.Lock()
        self._closed = True
        for endpoint in self._endpoints:
            endpoint.idle = []

    def close(self) -> None:
        """Closes the connections that nobody uses."""
        with self._lock:
            self._closed = True
            idle = [connection for endpoint in self._endpoints for connection in endpoint.idle]
            for endpoint in self._endpoints:
                endpoint.idle = []
        for connection in idle:
            connection.close()


def _is_over(sock: socket.socket) -> bool:
    """Whether the other side has closed a connection on which nothing is awaited."""
    timeout = sock.gettimeout()
    try:
        sock.settimeout(0)
        if isinstance(sock, ssl.SSLSocket):
            return bool(sock.pending())
        return bool(sock.recv(1, socket.MSG_PEEK) or True)
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True
    finally:
        try:
            sock.settimeout(timeout)
        except OSError:
            pass


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, str, Any]]:
    kind, number, data = "message", "", ""
    while True:
        line = answer.readline()
        if not line:
            return
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if not text:
            if data or number:
                yield kind, number, json.loads(data) if data else None
            kind, number, data = "message", "", ""
            continue
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            kind = value
        elif name == "data":
            data += value
        elif name == "id":
            number = value
        elif name == "" and value:
            yield "comment", "", None


def is_unknown_session(error: BaseException) -> bool:
    """Whether the store said that the session has ended."""
    return isinstance(error, Refused) and error.code == "unknown_session"


def quoted(name: str) -> str:
    """A resource or key as a path: slashes stay slashes, a colon must not be taken for a verb."""
    return urllib.parse.quote(name, safe="/")
