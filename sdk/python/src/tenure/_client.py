"""The client: where a program begins. It opens sessions, watches, and drains on a signal."""

from __future__ import annotations

import functools
import logging
import math
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from ._clock import Clock, SystemClock
from ._core import Core
from ._credential import Credential, from_environment
from ._driver import KeepOptions, SessionDriver
from ._errors import Held, StillOut, TenureError
from ._holder import HolderOptions
from ._http import Transport, quoted
from ._lease import Lease, Session, Stale
from ._registers import Registers
from ._timing import Bounds, Timing
from ._watch import Watch

if TYPE_CHECKING:
    from ._election import Election

log = logging.getLogger("tenure")
R = TypeVar("R")

_TIMEOUT = 10.0
_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _forked() -> None:
    for client in list(_clients):
        client._core.forked()


# In a fork every permit is refused and every call raises `Forked`; this only keeps the child from waiting for
# a lock that a thread of the parent had at the moment of the fork.
os.register_at_fork(after_in_child=_forked)


def default_holder() -> str:
    """A name for people: the machine and the process."""
    return f"{socket.gethostname()}-{os.getpid()}"


class Client:
    """A client of one cluster. It can be shared by all threads of a process, and not by a fork of it."""

    def __init__(
        self,
        endpoints: str | list[str] | None = None,
        *,
        credential: Credential | None = None,
        holder: str | None = None,
        clock: Clock | None = None,
        follow_members: bool = True,
    ) -> None:
        if endpoints is not None:
            words = endpoints.split(",") if isinstance(endpoints, str) else endpoints
            listed = tuple(word.strip() for word in words if word.strip())
            credential = (credential or Credential()).at(listed)
        if credential is None:
            raise ValueError("give endpoints, or use Client.from_env()")
        self._core = Core(Transport(credential), clock or SystemClock(), follow_members)
        self._holder = holder
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._draining = threading.Event()
        _clients.add(self)

    @staticmethod
    def from_env(**options: Any) -> Client:
        """A client of the cluster that ``TENURE_ENDPOINTS`` and ``TENURE_CREDENTIAL`` name."""
        return Client(credential=from_environment(), **options)

    @property
    def endpoints(self) -> list[str]:
        """The nodes that are known, the one that is asked first in front."""
        return self._core.transport.endpoints()

    def session(
        self,
        ttl: float = 10.0,
        *,
        holder: str | None = None,
        timing: Timing | None = None,
        max_op: float = 0.0,
        strict: bool = False,
        progress_within: float | None = None,
        pause_noticed: float | None = None,
        stop_before: float | None = None,
        hard_stop: str | Callable[[int], None] | None = None,
        open_within: float = _TIMEOUT,
        events: bool = True,
    ) -> Session:
        """Opens a session with a TTL in seconds, and keeps it alive until it is closed.

        - ``strict``: no permit from the first failed renewal on, until one succeeds again.
        - ``progress_within``: no renewal once `Session.progressed` was not called for so long.
        - ``pause_noticed``: a renewer this late has been stopped; a twelfth of the TTL if not given.
        - ``stop_before``: what must be left of a lease, or its stop signal is given.
        - ``hard_stop``: what happens if a permit is out at the deadline: ``"abort"``, or a function.
        - ``max_op``: the longest operation under one permit; numbers that do not fit it are refused.
        """
        self._core.check_process()
        numbers = timing or Timing.for_ttl(int(ttl * 1e9))
        numbers.checked(Bounds(max_op=int(max_op * 1e9)))
        logic = HolderOptions(strict, _ns(progress_within), _ns(pause_noticed))
        margin = numbers.detect // 2 if stop_before is None else int(stop_before * 1e9)
        name = holder or self._holder or default_holder()
        options = KeepOptions(name, numbers, logic, open_within, margin, hard_stop, events)
        driver = SessionDriver(self._core, options)
        self._core.keep(driver)
        try:
            driver.wait_open()
        except BaseException:
            self._core.pool.submit(driver.close)  # interrupted: whatever was opened is closed
            raise
        session = Session(self, driver)
        self._sessions.add(session)
        if self._draining.is_set():
            session.close()
            raise TenureError("the client is being drained: it opens nothing any more")
        return session

    @property
    def registers(self) -> Registers:
        """Small values in the cluster."""
        return Registers(self)

    def election(self, name: str, **options: Any) -> Election:
        """An election under this name; see `Election`."""
        from ._election import Election

        return Election(self, name, **options)

    def watch(self, prefix: str = "", from_revision: int | None = None) -> Watch:
        """Events of all resources and registers whose name begins so, from now on or from a revision on."""
        return Watch(self._core, prefix, from_revision)

    def lease(self, resource: str, timeout: float = _TIMEOUT) -> dict[str, Any] | None:
        """Who holds a resource, linearizably, as the HTTP interface shows it; ``None`` if it was never seen."""
        from ._errors import Refused

        try:
            found: dict[str, Any] = self._core.read(f"/v1/leases/{quoted(resource)}", timeout)
            return found
        except Refused as error:
            if error.code == "not_found":
                return None
            raise

    def leases(self, prefix: str = "", timeout: float = _TIMEOUT) -> list[dict[str, Any]]:
        """All resources whose name begins so, as the HTTP interface shows them."""
        found: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            query = {"prefix": prefix, "limit": "1000", **({"after": after} if after else {})}
            answer = self._core.read(f"/v1/leases?{urlencode(query)}", timeout)
            found += answer["leases"]
            after = answer.get("next")
            if not after:
                return found

    def revoke(self, resource: str, *, now: bool = False, reason: str = "", timeout: float = _TIMEOUT) -> None:
        """Ends a lease by notice; with ``now`` at once, and then only fences protect."""
        body: dict[str, Any] = {"reason": reason} if reason else {}
        if now:
            body["now"] = True
        self._core.plain("POST", f"/v1/leases/{quoted(resource)}:revoke", body, timeout, repeat=False)

    def report_refused(self, resource: str, fence: str, stale: Stale, slot: int | None = None) -> None:
        """Reports a stale write that a fence refused, as evidence for people. Nobody waits for it."""
        body: dict[str, Any] = {"fence": fence, "presented": stale.presented, "seen": stale.seen, "count": 1}
        if slot is not None:
            body["slot"] = slot
        self._core.pool.submit(self._core.tell, "POST", f"/v1/fences/{quoted(resource)}:refused", body, None)

    def singleton(
        self,
        resource: str,
        *,
        ttl: float = 10.0,
        wait: float | bool | None = None,
        rest: float | None = None,
        **options: Any,
    ) -> Callable[[Callable[..., R]], Callable[..., R | None]]:
        """A decorator: the function runs in one process at a time, with the lease as its first argument.

        Without ``wait`` a call is skipped (``None`` is returned) while another has it; with ``wait`` it is
        queued for so many seconds. ``rest`` keeps the resource from being granted again for so long
        afterwards, so that machines whose clocks differ do not run a short job twice.
        """

        def decorate(function: Callable[..., R]) -> Callable[..., R | None]:
            @functools.wraps(function)
            def run(*arguments: Any, **named: Any) -> R | None:
                with self.session(ttl, **options) as session:
                    try:
                        lease = session.acquire(resource, wait=wait)
                    except Held as held:
                        log.info("%s is skipped: %s", resource, held)
                        return None
                    with lease:
                        result = function(lease, *arguments, **named)
                        if rest is not None:
                            lease.release(rest=rest)
                        return result

            return run

        return decorate

    def drain(self, within: float = 20.0) -> bool:
        """Gives everything back: no new permit, then waits for those that are out, then closes all sessions.

        Returns within so many seconds; false if work was still going on. Then its sessions go on.
        """
        self._core.check_process()
        self._draining.set()
        end = time.monotonic() + within
        futures = []
        for session in list(self._sessions):
            left = max(end - time.monotonic(), 0.0)
            futures.append(self._core.pool.submit(session.close, left))
        drained = True
        for future in futures:
            try:
                future.result(max(end - time.monotonic(), 0.0) + 1.0)
            except (StillOut, TimeoutError, TenureError) as error:
                log.warning("a session could not be drained: %s", error)
                drained = False
        return drained

    def drain_on(self, signum: int = signal.SIGTERM, within: float = 20.0) -> None:
        """On this signal: drains, then does what the signal would have done without this.

        Call it in the main thread. The work sees it as refused permits and as a stop signal.
        """
        before = signal.getsignal(signum)
        drained = threading.Event()

        def drain() -> None:
            self.drain(within)
            drained.set()
            os.kill(os.getpid(), signum)

        def handle(number: int, frame: FrameType | None) -> None:
            if not drained.is_set():
                if not self._draining.is_set():
                    self._draining.set()
                    threading.Thread(target=drain, name="tenure-drain", daemon=True).start()
                return
            signal.signal(signum, before if before is not None else signal.SIG_DFL)
            os.kill(os.getpid(), number)

        signal.signal(signum, handle)

    def close(self, within: float = 20.0) -> None:
        """Drains, then ends the client's threads and connections."""
        self.drain(within)
        self._core.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {','.join(self.endpoints)}>"


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None or math.isinf(seconds) else int(seconds * 1e9)


__all__ = ["Client", "Lease", "Session"]
