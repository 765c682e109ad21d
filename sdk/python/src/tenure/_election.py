"""Election: leadership is a lease, and whoever loses it is queued again.

There is no recipe here, and so nothing that could race: the queue, the grant and the end are the store's.
This only keeps a candidate going through *prepare, wait and warm up, lead*, with a new session each time.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ._errors import PermitRefused, TenureError, TooOld
from ._lease import Lease, Session
from ._registers import Register
from ._watch import Watch

if TYPE_CHECKING:
    from ._client import Client

_BACKOFF_FIRST, _BACKOFF_MAX = 0.05, 2.0


@dataclass(frozen=True)
class Leader:
    """Who leads, as the store says. Whether it still does is for its own permits and for fences to say."""

    holder: str
    session_number: int
    token: int
    #: What it has published.
    value: bytes | None = None


class Leadership:
    """The lease of a leader, and what it publishes. Leaving the ``with`` block resigns."""

    def __init__(self, session: Session, lease: Lease) -> None:
        self.session = session
        self.lease = lease
        self.permit = lease.permit
        self.status = lease.status
        self.stop_signal = lease.stop_signal
        self.on_change = lease.on_change

    @property
    def token(self) -> int:
        """The fencing token of the leadership."""
        return self.lease.token

    def publish(self, value: bytes | str) -> Register:
        """Publishes where the leader can be reached, under a permit. It disappears with the leadership."""
        with self.lease.permit() as permit:
            return self.session.registers.put(value_key(self.lease.resource), value, permit=permit, ephemeral=True)

    def resign(self) -> None:
        """Gives the leadership back, once no permit is out. The next in the queue is elected in the same step."""
        try:
            self.lease.release()
        finally:
            self.session.close()

    def __enter__(self) -> Leadership:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.resign()


def value_key(election: str) -> str:
    """The register that a leader publishes in: under the election's name, so that one watch covers both."""
    return f"{election}/leader"


class Election:
    """An election under one name. ``value`` is what the leader publishes, ``priority`` who goes first."""

    def __init__(
        self, client: Client, name: str, *, value: bytes | str | None = None, priority: int = 0, **session: Any
    ) -> None:
        self.client = client
        self.name = name
        self.value = value
        self.priority = priority
        self._session_options = session

    def campaign(self, *, wait: float | bool = True, warm_up: Callable[[], object] | None = None) -> Leadership:
        """Waits in the queue once and returns when elected and warmed up. Raises `Held` after ``wait`` seconds."""
        session = self.client.session(**self._session_options)
        warming: Future[object] | None = None
        try:
            if warm_up is not None:
                warming = self.client._core.pool.submit(warm_up)
            lease = session.acquire(self.name, wait=wait, priority=self.priority)
            if warming is not None:
                warming.result()
            leadership = Leadership(session, lease)
            if self.value is not None:
                leadership.publish(self.value)
            return leadership
        except BaseException:
            session.close()
            raise

    def run(
        self,
        lead: Callable[[Leadership], object],
        *,
        until: threading.Event | None = None,
        prepare: Callable[[], object] | None = None,
        warm_up: Callable[[], object] | None = None,
    ) -> None:
        """Campaigns, leads, and campaigns again after any loss, until ``until`` is set.

        ``lead`` returns to resign. Take a permit for each step and watch the stop signal: Python cannot stop
        a thread, so ``lead`` is not interrupted when the leadership is lost; its permits are refused.
        """
        stop = until or threading.Event()
        delay = _BACKOFF_FIRST
        while not stop.is_set():
            try:
                if prepare is not None:
                    prepare()
                leadership = self._campaign_until(stop, warm_up)
                if leadership is None:
                    return
                try:
                    lead(leadership)
                    delay = _BACKOFF_FIRST
                finally:
                    # Until the store has it back, being queued again would be standing behind oneself.
                    try:
                        leadership.resign()
                    except TenureError:
                        pass
            except (TenureError, PermitRefused):
                pass
            stop.wait(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, _BACKOFF_MAX)

    def _campaign_until(self, stop: threading.Event, warm_up: Callable[[], object] | None) -> Leadership | None:
        session = self.client.session(**self._session_options)
        from ._lease import FOREVER, acquire_body

        warming = self.client._core.pool.submit(warm_up) if warm_up is not None else None
        asked = session._driver.acquire([self.name], acquire_body(priority=self.priority), (), FOREVER, 10.0)
        while not asked.future.done():
            if stop.wait(0.05):
                asked.call_off()
                session.close()
                return None
        try:
            lease = Lease(session, asked.future.result()[0])
            if warming is not None:
                warming.result()
            leadership = Leadership(session, lease)
            if self.value is not None:
                leadership.publish(self.value)
            return leadership
        except BaseException:
            session.close()
            raise

    def leader(self) -> Leader | None:
        """Who leads now, linearizably."""
        found = self.client.lease(self.name)
        if found is None or not found["holders"]:
            return None
        first = found["holders"][0]
        register = self.client.registers.get(value_key(self.name))
        # Only what this very session has published: the last leader's value may not be cleared away yet.
        ours = register is not None and register.session_number == first["session_number"]
        value = register.value if ours and register is not None else None
        return Leader(str(first["holder"]), int(first["session_number"]), int(first["token"]), value)

    def observe(self, until: threading.Event | None = None) -> Iterator[Leader | None]:
        """Who leads, now and whenever that changes; ``None`` while nobody does."""
        last: Leader | None = None
        first = True
        watch = self.client.watch(self.name)
        events = iter(watch)
        if until is not None:
            threading.Thread(target=_close_when, args=(until, watch), daemon=True).start()
        try:
            while until is None or not until.is_set():
                leader = self.leader()
                if first or leader != last:
                    first, last = False, leader
                    yield leader
                try:
                    if next(events, None) is None:
                        return
                except TooOld:
                    # Too far behind: the next look tells what was missed.
                    watch = self.client.watch(self.name)
                    events = iter(watch)
        finally:
            watch.close()


def _close_when(until: threading.Event, watch: Watch) -> None:
    until.wait()
    watch.close()
