"""What all sessions of a client share: the transport, the renewer, the threads; and how a call is repeated.

Whether a call may be repeated is decided here and nowhere else. A command with a number is done once,
however often it is sent, so it is sent again, elsewhere, until its time is over.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from ._clock import Clock
from ._driver import Send, SessionDriver
from ._errors import Forked, Refused, TenureError, Unanswered, Unreachable, refused
from ._http import Attempt, Endpoint, Transport
from ._pool import Pool
from ._renewer import Renewer

log = logging.getLogger("tenure")

#: How long a silent node is waited for: R/4 of the most impatient session, within these.
_WAIT_MIN, _WAIT_MAX = 0.25, 3.0
_BACKOFF_FIRST, _BACKOFF_MAX = 0.02, 1.0
#: Event streams are hints, so only so many sessions have one; the others learn with their renewals.
_STREAMS_MAX = 64
_STREAM_SILENCE = 60.0
_FOLLOW_EVERY = 30.0
#: Renewals in one message: 64 KiB, far below what a node accepts.
RENEWALS_MAX = 1_000


class Core:
    """See the module."""

    def __init__(self, transport: Transport, clock: Clock, follow: bool) -> None:
        self.pid = os.getpid()
        self.transport = transport
        self.clock = clock
        self.pool = Pool("tenure-call")
        self.drivers: weakref.WeakSet[SessionDriver] = weakref.WeakSet()
        self.closed = False
        self._follow = follow
        self._followed = 0.0
        self._patience = _WAIT_MAX
        self._patience_until = 0.0
        self._streams = 0
        self._lock = threading.Lock()
        self._hooks: queue.SimpleQueue[Callable[[], None]] | None = None
        self.renewer = Renewer(clock, self._send)

    def check_process(self) -> None:
        """A fork holds nothing, and has none of the threads."""
        if os.getpid() != self.pid:
            raise Forked(f"this client belongs to process {self.pid}, and this is process {os.getpid()}, a fork of it")

    def forked(self) -> None:
        """Called in a fork of the process: it holds nothing, and locks may have been held when it was made."""
        self.closed = True
        self._lock = threading.Lock()
        self.transport.forked()
        self.renewer.forked()
        for driver in list(self.drivers):
            driver.forked()

    def patience(self) -> float:
        """How long an endpoint may be silent."""
        now = time.monotonic()
        if now >= self._patience_until:
            # Looked up once a second: there may be ten thousand sessions.
            detects = (driver.options.timing.detect / 1e9 for driver in list(self.drivers))
            self._patience = min(max(min(detects, default=_WAIT_MAX), _WAIT_MIN), _WAIT_MAX)
            self._patience_until = now + 1.0
        return self._patience

    def command(
        self,
        method: str,
        path: str,
        body: Any,
        *,
        session: str | None = None,
        until: Callable[[], float],
        attempt: Attempt | None = None,
        poll: float = 0.0,
        sent: bool = False,
        repeat: bool = True,
    ) -> tuple[int, Any]:
        """Asks until it is answered, at one node after another, for as long as ``until`` says.

        ``poll`` is how long a node may hold the request back. ``sent`` says that an earlier transmission may
        have been done already. ``repeat=False`` is for what has no number: it is sent once.
        """
        self.check_process()
        tried: dict[str, str] = {}
        endpoint = self.transport.endpoint()
        delay, rounds = _BACKOFF_FIRST, 0
        while True:
            left = until()
            if left <= 0 or (attempt is not None and attempt.hung_up):
                raise self._gave_up(tried, sent)
            patience = self.patience() * (1 << min(rounds // max(self.transport.count, 1), 2))
            after = 0.0
            try:
                return self.transport.exchange(endpoint, method, path, body, session, min(patience, left) + poll, attempt)
            except Unreachable as error:
                tried[endpoint.name] = str(error)
            except Unanswered as error:
                tried[endpoint.name] = str(error)
                sent = True
                if not repeat and method != "GET":
                    raise
            except Refused as error:
                proxy = error.code == "internal" and error.status in (502, 503, 504)
                if error.code == "unknown_outcome" or proxy:
                    sent = True
                    if not repeat and method != "GET":
                        raise
                elif error.code == "unknown_session" and sent:
                    # That its session has ended says nothing about the transmission that went unanswered.
                    error.effect = "unknown"
                    raise
                elif not error.passes:
                    raise
                tried[endpoint.name] = str(error)
                after = float(error.fields.get("retry_after_ms") or 0) / 1000
            rounds += 1
            endpoint = self.transport.endpoint(another=endpoint)
            if after or rounds % max(self.transport.count, 1) == 0:
                pause = max(delay * random.uniform(0.5, 1.0), min(after, _BACKOFF_MAX))
                time.sleep(max(min(pause, until()), 0.0))
                delay = min(delay * 2, _BACKOFF_MAX)

    @staticmethod
    def _gave_up(tried: dict[str, str], sent: bool) -> TenureError:
        listed = "; ".join(tried.values())
        if sent:
            return Unanswered(f"the store did not answer ({listed})" if listed else "the store did not answer", "unknown")
        return Unreachable(f"no store could be reached ({listed})" if listed else "no store was asked in time")

    def read(self, path: str, timeout: float) -> Any:
        """A call that changes nothing."""
        return self.plain("GET", path, None, timeout)

    def plain(self, method: str, path: str, body: Any, timeout: float, repeat: bool = True) -> Any:
        """A call outside of any session."""
        end = time.monotonic() + timeout
        return self.command(method, path, body, until=lambda: end - time.monotonic(), repeat=repeat)[1]

    def tell(self, method: str, path: str, body: Any, session: str | None) -> None:
        """Tells a node something that nothing depends on."""
        try:
            self.transport.exchange(self.transport.endpoint(), method, path, body, session, self.patience())
        except TenureError as error:
            log.debug("%s %s: %s", method, path, error)

    # Opens and renewals.

    def _send(self, sends: list[Send]) -> None:
        """Called by the renewer: the renewals of all sessions that are due ride in common messages."""
        groups: dict[int, tuple[Endpoint | None, list[Send]]] = {}
        for send in sends:
            if send.driver.id is None:
                self.pool.submit(self._open, send)
            else:
                groups.setdefault(id(send.not_to), (send.not_to, []))[1].append(send)
        for not_to, group in groups.values():
            for start in range(0, len(group), RENEWALS_MAX):
                self.pool.submit(self._renew, not_to, group[start : start + RENEWALS_MAX])

    def _open(self, send: Send) -> None:
        driver = send.driver
        endpoint = driver.asked = self.transport.endpoint(another=send.not_to)
        options = driver.options
        body = {
            "holder": options.holder, "ttl_ms": options.timing.ttl // 1_000_000, "nonce": driver.nonce,
            "number": send.number,
        }  # fmt: skip
        answer, failure = None, None
        try:
            _, answer = self.transport.exchange(endpoint, "POST", "/v1/sessions", body, None, self.patience() * 4)
        except TenureError as error:
            failure = error
        try:
            driver.opened(send.number, answer, failure)
        except (KeyError, TypeError, ValueError) as error:
            driver.opened(send.number, None, Unanswered(f"an answer that makes no sense: {error!r}", "unknown"))
        self.renewer.nudge(driver)
        self._follow_members()

    def _renew(self, not_to: Endpoint | None, group: list[Send]) -> None:
        endpoint = self.transport.endpoint(another=not_to)
        for send in group:
            send.driver.asked = endpoint
        # A late answer is as good as any until the deadline: each transmission has its own number.
        timeout = min(send.driver.options.timing.ttl for send in group) / 1e9
        answers: list[Any] = []
        failure: TenureError | None = None
        try:
            if len(group) == 1:
                body: dict[str, Any] = {"number": group[0].number}
                session = group[0].driver.id
                answers = [self.transport.exchange(endpoint, "POST", "/v1/session:renew", body, session, timeout)[1]]
            else:
                body = {"renewals": [{"session": send.driver.id, "number": send.number} for send in group]}
                found = self.transport.exchange(endpoint, "POST", "/v1/sessions:renew", body, None, timeout)[1]
                answers = found["answers"]
        except TenureError as error:
            failure = error
        for at, send in enumerate(group):
            answer, wrong = None, failure
            if at < len(answers):
                answer = answers[at]
                if "error" in answer:
                    wrong = refused(200, answer)
            elif wrong is None:
                wrong = Unanswered("a batch of renewals was answered in part", "unknown")
            try:
                send.driver.renewed(send.number, answer, wrong)
            except (KeyError, TypeError, ValueError) as error:
                # It makes no sense, so it moves nothing; those behind it are answered all the same.
                send.driver.renewed(send.number, None, Unanswered(f"an answer that makes no sense: {error!r}", "unknown"))
            self.renewer.nudge(send.driver)
        self._follow_members()

    def keep(self, driver: SessionDriver) -> None:
        """Keeps a session alive from now on."""
        self.check_process()
        self.drivers.add(driver)
        self._patience = min(self._patience, max(driver.options.timing.detect / 1e9, _WAIT_MIN))
        self.renewer.nudge(driver)

    def _follow_members(self) -> None:
        now = time.monotonic()
        with self._lock:
            if not self._follow or (self._followed and now - self._followed < _FOLLOW_EVERY):
                return
            self._followed = now

        def follow() -> None:
            try:
                answer = self.transport.exchange(self.transport.endpoint(), "GET", "/v1/cluster", timeout=3.0)[1]
                self.transport.follow([str(node.get("client_address") or "") for node in answer.get("nodes", ())])
            except TenureError as error:
                log.debug("the members could not be listed: %s", error)

        self.pool.submit(follow)

    # Events and hooks.

    def listen(self, driver: SessionDriver) -> None:
        """Listens to what the store pushes about a session. Hints only."""
        with self._lock:
            if self._streams >= _STREAMS_MAX:
                return
            self._streams += 1
        threading.Thread(target=self._listen, args=(driver,), name="tenure-events", daemon=True).start()

    def _listen(self, driver: SessionDriver) -> None:
        attempt = Attempt()
        with driver.lock:
            driver._attempts.add(attempt)
        try:
            while driver.status == "open" and not self.closed:
                endpoint = self.transport.endpoint()
                try:
                    for kind, _, data in self.transport.stream(
                        endpoint, "/v1/sessions:events", driver.id, _STREAM_SILENCE, attempt
                    ):
                        driver.event(kind, data)
                except (TenureError, ValueError) as error:
                    log.debug("the events of a session: %s", error)
                with driver.lock:
                    if driver.status == "open":
                        driver.changed.wait(1.0)
        finally:
            with driver.lock:
                driver._attempts.discard(attempt)
            with self._lock:
                self._streams -= 1

    def call_hook(self, hook: Callable[[Any], None], value: Any) -> None:
        """Calls the application's code on a thread that nothing else depends on, one call at a time."""
        with self._lock:
            if self._hooks is None:
                self._hooks = queue.SimpleQueue()
                threading.Thread(target=_call_all, args=(self._hooks,), name="tenure-hooks", daemon=True).start()
            self._hooks.put(lambda: hook(value))

    @staticmethod
    def hard_stop(stop: str | Callable[[int], None] | None, token: int) -> None:
        """A permit is still out at the deadline of its lease, which may be another's by now."""
        if stop == "abort":
            print(
                f"tenure: work under token {token} was still going on at its deadline; aborting, because the "
                "lease may be another's",
                file=sys.stderr,
                flush=True,
            )
            os.abort()
        elif callable(stop):
            threading.Thread(target=stop, args=(token,), name="tenure-hard-stop", daemon=True).start()

    def close(self) -> None:
        """Stops renewing."""
        self.closed = True
        self.renewer.stop()
        self.transport.close()


def _call_all(hooks: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        hook = hooks.get()
        try:
            hook()
        except Exception:
            log.exception("a hook of the application failed")
