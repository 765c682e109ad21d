"""Sessions, leases and permits in the hands of the application."""

from __future__ import annotations

import math
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from ._driver import Acquiring, Grant, LeaseStatus, SessionDriver
from ._errors import LeaseEnded, PermitRefused, Refused, StillOut, TenureError, Unanswered
from ._holder import LeaseEnd, LeaseState, NoPermit
from ._http import quoted
from ._timing import Moment

if TYPE_CHECKING:
    from ._client import Client
    from ._registers import Registers

FOREVER = math.inf
_ACQUIRE_TIMEOUT = 10.0


class Fence(Protocol):
    """A storage that checks tokens: it can be told a new one before anything is read."""

    def barrier(self, takeover: Takeover) -> Any:
        """Installs the token. Raises `tenure.Stale` if it has seen a newer one."""


class Stale(TenureError):
    """A storage has seen a newer token: stop, do not retry."""

    def __init__(self, scope: str, presented: int, seen: int) -> None:
        super().__init__(f"stale token: {presented} was presented for {scope}, {seen} has been seen")
        self.scope = scope
        self.presented = presented
        self.seen = seen


class FenceUnavailable(TenureError):
    """A storage could not be reached or was busy; nothing was written. A barrier is repeated."""


class OutOfTime(TenureError):
    """What is left of the lease does not cover the work any more; nothing was written."""


class Takeover:
    """What a fence is told on taking over: the scope, the token, the holder and what is left of the lease."""

    def __init__(self, scope: str, token: int, holder: str, remaining: float) -> None:
        self.scope = scope
        self.token = token
        self.holder = holder
        self.remaining = remaining


class Permit:
    """Proof that the lease was valid when this was taken, and for how long work may go on under it.

    Use it as a context manager: leaving the block says that the work under it has ended. A lease is given
    back only when no permit is out, so one that is never left is warned about when it is thrown away.
    """

    __slots__ = ("_lease", "_taken", "_remaining", "_done", "__weakref__")

    def __init__(self, lease: Lease, taken: Moment, remaining: int) -> None:
        self._lease = lease
        self._taken = taken
        self._remaining = remaining
        self._done = False

    @property
    def token(self) -> int:
        """The fencing token to write with. Only while the permit is out and has time left."""
        self.check()
        return self._lease.token

    @property
    def scope(self) -> str:
        """What the permit covers: the resource, or ``resource#slot``."""
        return self._lease.scope

    @property
    def lease(self) -> Lease:
        """The lease that it was taken under."""
        return self._lease

    def remaining(self) -> float:
        """Seconds left before the work under it must have stopped: a budget for time-outs. Zero when over."""
        return self.remaining_ns() / 1e9

    def remaining_ns(self) -> int:
        """The same in nanoseconds."""
        if self._done or os.getpid() != self._lease._driver.pid:
            return 0
        passed = self._lease._driver.core.clock.now().since(self._taken)
        return max(self._remaining - passed, 0)

    def check(self) -> None:
        """Raises `OutOfTime` once nothing is left, or when the permit was given back."""
        if self._done:
            raise OutOfTime("the permit was given back; take a new one for every piece of work")
        if not self.remaining_ns():
            raise OutOfTime(f"nothing is left of the permit for {self.scope}; the lease may be another's by now")

    def done(self) -> None:
        """The work under it has ended. Leaving the ``with`` block says so too."""
        if not self._done:
            self._done = True
            self._lease._driver.permit_done(self._lease.token)

    def __enter__(self) -> Permit:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.done()

    def __del__(self) -> None:
        if not getattr(self, "_done", True) and os.getpid() == self._lease._driver.pid:
            warnings.warn(
                f"a permit for {self._lease.resource} was thrown away without being given back; use `with`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
            self.done()

    def __repr__(self) -> str:
        return f"<Permit {self.scope} {'done' if self._done else f'{self.remaining():.3f} s left'}>"


class ReadPermit(Permit):
    """Proof that a *shared* lease was valid. It has no token, so no fence accepts it for a write."""

    __slots__ = ()

    @property
    def token(self) -> int:
        """A reader has none."""
        raise PermitRefused(NoPermit("read_only"))


class StopSignal:
    """Says when work under a lease has to stop: at the soft deadline, on notice, after a pause, at the end.

    It never takes back what it said; after the lease is held again, ask for a new one.
    """

    def __init__(self, event: threading.Event) -> None:
        self._event = event

    def is_set(self) -> bool:
        """Whether it has been said."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is said, for so many seconds at most."""
        return self._event.wait(timeout)


class Lease:
    """The right to act on a resource, for as long as it is renewed.

    It is kept alive in the background. Whether it may be used is asked at the moment of use, with
    `permit`. Leaving the ``with`` block gives it back as soon as no permit is out.
    """

    def __init__(self, session: Session, grant: Grant) -> None:
        self._session = session
        self._driver = session._driver
        self._grant = grant
        self._over = False
        self._final: LeaseStatus | None = None
        self.token = grant.token
        self.resource = grant.resource
        self.scope = grant.scope

    @property
    def session(self) -> Session:
        """The session that holds it."""
        return self._session

    @property
    def generation(self) -> int:
        """How often the resource had changed hands at this grant; for people."""
        return self._grant.generation

    @property
    def slot(self) -> int | None:
        """Which slot of a semaphore."""
        return self._grant.slot

    @property
    def mode(self) -> Any:
        """``exclusive``, ``shared`` or ``{"slots": n}``."""
        return self._grant.mode

    @property
    def waited(self) -> float:
        """How long the acquire was queued, in seconds."""
        return self._grant.waited

    def permit(self, max_op: float = 0.0) -> Permit:
        """A permit for work of up to ``max_op`` seconds. Judged now, by the clocks. Raises `PermitRefused`."""
        taken = self._driver.permit(self.token, int(max_op * 1e9), True)
        if isinstance(taken, NoPermit):
            raise self._refused(taken)
        return Permit(self, taken[0], taken[1])

    def read_permit(self, max_op: float = 0.0) -> ReadPermit:
        """A permit to read for up to ``max_op`` seconds; a sharer's only kind."""
        taken = self._driver.permit(self.token, int(max_op * 1e9), False)
        if isinstance(taken, NoPermit):
            raise self._refused(taken)
        return ReadPermit(self, taken[0], taken[1])

    def _refused(self, no: NoPermit) -> PermitRefused:
        if no.kind == "unknown" and self._final is not None:
            no = NoPermit("ended", end=self._final.state.end)
        return PermitRefused(no)

    def status(self) -> LeaseStatus:
        """What the lease is at this moment."""
        return self._final or self._driver.lease_status(self.token)[0]

    def remaining(self) -> float:
        """Seconds left at this moment before the work must have stopped."""
        return self._driver.lease_status(self.token)[1] / 1e9

    def on_change(self, hook: Callable[[LeaseStatus], object]) -> None:
        """Calls ``hook`` with every new status, one at a time, on a thread that nothing else depends on."""
        with self._driver.lock:
            kept = self._driver.leases.get(self.token)
            if kept is not None:
                kept.hooks.append(lambda status: (hook(status), None)[1])

    def stop_signal(self) -> StopSignal:
        """A signal that work under this lease has to stop."""
        with self._driver.lock:
            kept = self._driver.leases.get(self.token)
            if kept is not None:
                return StopSignal(kept.stop)
        over = threading.Event()
        over.set()
        return StopSignal(over)

    def wait_ended(self, timeout: float | None = None) -> LeaseStatus:
        """Waits until the lease has ended or its deadline has passed; returns what it is then."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._driver.lock:
            while True:
                status = self._driver._status(self.token, self._driver.core.clock.now())
                doubt = status.state.jeopardy
                if status.state.end is not None or (doubt is not None and doubt.kind == "past_deadline"):
                    return status
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return status
                self._driver.changed.wait(left)

    def release(self, rest: float | None = None) -> LeaseEnd:
        """Gives the lease back: no new permit, waits for those that are out, then tells the store.

        Returns how the lease ended, which may have been otherwise meanwhile; at the latest at its deadline.
        With ``rest`` nobody is granted the resource for so many seconds afterwards.
        """
        if self._final is not None and self._final.state.end is not None:
            return self._final.state.end
        end = self._driver.give_back(self.token, rest=rest)
        self._finish(end)
        return end

    def transfer(self, to: int) -> None:
        """Hands the lease to the session with this public number, which must be queued for the resource."""
        end = self._driver.give_back(self.token, to=to)
        if end.kind != "transferred":
            raise LeaseEnded(end, "unknown" if end.kind == "released" else "not_applied")
        self._finish(end)

    def drain(self, within: float) -> LeaseEnd:
        """Closes the intake, waits up to ``within`` seconds for the permits that are out, and gives back.

        Raises `StillOut` if they are not back in time; then the intake is open again and the lease held.
        """
        end = self._driver.give_back(self.token, within=within)
        self._finish(end)
        return end

    def unarmed(self) -> list[str]:
        """The fences that have not answered the barrier: without them there is no permit."""
        found: list[str] = self._driver.with_logic(lambda logic, _: logic.unarmed(self.token))
        return found

    def takeover(self) -> Takeover:
        """What a fence is told on taking over. `take_over` does this and the rest by itself."""
        if not self._grant.writes:
            raise PermitRefused(NoPermit("read_only"))
        no: NoPermit | None = self._driver.with_logic(lambda logic, now: logic.barrier(self.token, now))
        if os.getpid() != self._driver.pid:
            no = NoPermit("forked")
        if no is not None:
            raise PermitRefused(no)
        return Takeover(self.scope, self.token, self._driver.options.holder, self.remaining())

    def take_over(self, fences: Mapping[str, Fence]) -> dict[str, Any]:
        """Installs the token in these fences before anything is read; returns what each of them found.

        A fence that cannot be reached is asked again for as long as the lease lasts. One that has seen a
        newer token ends the lease, and `Stale` is raised.
        """
        found: dict[str, Any] = {}
        for name, fence in fences.items():
            delay = 0.02
            while True:
                takeover = self.takeover()  # asked anew each time: this ends the loop together with the lease
                try:
                    found[name] = fence.barrier(takeover)
                    break
                except Stale as stale:
                    self._refused_by_fence(stale.seen)
                    self.report_refused(name, stale)
                    raise
                except (FenceUnavailable, Unanswered):
                    time.sleep(delay)
                    delay = min(delay * 2, 0.5)
            self.armed(name)
        return found

    def _refused_by_fence(self, seen: int) -> None:
        self._driver.with_logic(lambda logic, _: logic.barrier_refused(self.token, seen))

    def armed(self, fence: str) -> None:
        """A fence has installed the token. If the store says that it is no longer the live one, the lease ends."""
        self._driver.with_logic(lambda logic, _: logic.armed(self.token, fence))
        self._driver.core.pool.submit(self._arm, fence)

    def _arm(self, fence: str) -> None:
        body: dict[str, Any] = {"fence": fence, "token": self.token}
        if self.slot is not None:
            body["slot"] = self.slot
        core = self._driver.core
        path = f"/v1/fences/{quoted(self.resource)}:arm"
        try:
            core.command("POST", path, body, until=self._driver.seconds_left)
        except Refused as error:
            seen = error.fields.get("seen")
            if error.code == "stale_token" and isinstance(seen, int):
                self._refused_by_fence(seen)
            elif error.code in ("stale_token", "lease_ended", "not_held", "unknown_token"):
                # It has ended without a successor. How, is for the store to say: what it does not list has ended.
                self._driver._ask_for_leases()
        except TenureError:
            pass  # The fence has the token all the same.

    def report_refused(self, fence: str, stale: Stale) -> None:
        """Reports a stale write that a fence refused, as evidence for people. Nobody waits for it."""
        self._session.client.report_refused(self.resource, fence, stale, self.slot)

    def sequencer(self, timeout: float = 5.0) -> str:
        """A signed statement of this lease, for storages that must not believe bare numbers."""
        body = {"resource": self.resource, **({} if self.slot is None else {"slot": self.slot})}
        core = self._driver.core
        end = time.monotonic() + timeout
        answer = core.command(
            "POST", "/v1/sequencers", body, session=self._driver.id, until=lambda: end - time.monotonic()
        )[1]
        return str(answer["sequencer"])

    def _finish(self, end: LeaseEnd) -> None:
        self._over = True
        self._final = LeaseStatus(LeaseState("ended", end=end))
        self._driver.forget(self.token)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._over:
            return
        try:
            self.release()
        except (StillOut, Unanswered):
            # Work goes on, or the store is away: it is given back in the background, or ends with its TTL.
            self._over = True
            self._driver.drop(self.token)

    def __del__(self) -> None:
        if not getattr(self, "_over", True) and os.getpid() == self._driver.pid:
            self._over = True
            self._driver.drop(self.token)

    def __repr__(self) -> str:
        return f"<Lease {self.scope} token {self.token} {self.status()}>"


def acquire_body(
    mode: str = "exclusive",
    slots: int | None = None,
    priority: int = 0,
    lock_delay: float | None = None,
    max_hold: float | None = None,
    hard_limit: float | None = None,
    reentrant: bool = False,
    fences: Iterable[str] = (),
) -> dict[str, Any]:
    """The body of an acquire, without what repeats it."""
    if mode not in ("exclusive", "shared"):
        raise ValueError(f"mode is exclusive or shared, not {mode!r}; for a semaphore give slots=n")
    body: dict[str, Any] = {"mode": mode if slots is None else {"slots": slots}}
    lengths = {"lock_delay_ms": lock_delay, "max_hold_ms": max_hold, "hard_limit_ms": hard_limit}
    body.update({name: math.ceil(length * 1000) for name, length in lengths.items() if length is not None})
    if priority:
        body["priority"] = priority
    if reentrant:
        body["reentrant"] = True
    names = list(fences)
    if names:
        body["fences"] = names
    return body


def waiting(wait: float | bool | None) -> float | None:
    """How long to be queued: ``None`` not at all, infinite for ever."""
    if wait is True:
        return FOREVER
    if wait is None or wait is False:
        return None
    if not wait >= 0:
        raise ValueError(f"a wait of {wait} s is none")
    return float(wait)


class Session:
    """The unit of liveness: one TTL, one heartbeat, many leases. Leaving the ``with`` block closes it."""

    def __init__(self, client: Client, driver: SessionDriver) -> None:
        self.client = client
        self._driver = driver
        self._closed = False

    @property
    def number(self) -> int:
        """The public number, shown in lists and named by a transfer."""
        assert self._driver.session_number is not None
        return self._driver.session_number

    @property
    def holder(self) -> str:
        """The name for people."""
        return self._driver.options.holder

    @property
    def is_open(self) -> bool:
        """Whether it lives, as far as is known."""
        return self._driver.status == "open" and not self._driver.logic.session_ended

    def remaining(self) -> float:
        """Seconds left of the session's local deadline."""
        return self._driver.remaining() / 1e9

    @property
    def ended_early(self) -> float | None:
        """What was left of the deadline when the store let the session run out: a clock is wrong."""
        left = self._driver.logic.ended_early
        return None if left is None or self._driver.closing else left / 1e9

    def progressed(self) -> None:
        """The worker is getting on; for sessions with ``progress_within``."""
        self._driver.with_logic(lambda logic, now: logic.progressed(now))
        self._driver.core.renewer.nudge(self._driver)

    @property
    def registers(self) -> Registers:
        """Small values in the cluster, written in the name of this session."""
        from ._registers import Registers

        return Registers(self.client, self._driver)

    def acquire(
        self,
        resource: str,
        *,
        wait: float | bool | None = None,
        mode: str = "exclusive",
        slots: int | None = None,
        priority: int = 0,
        lock_delay: float | None = None,
        max_hold: float | None = None,
        hard_limit: float | None = None,
        reentrant: bool = False,
        fences: Mapping[str, Fence] | Sequence[str] = (),
        timeout: float = _ACQUIRE_TIMEOUT,
    ) -> Lease:
        """Acquires a lease, at once or after a wait of so many seconds (``True``: for ever).

        ``slots=n`` makes the resource a semaphore. With ``fences`` as a mapping their barriers are run before
        this returns; with names alone, call `Lease.take_over`. ``timeout`` is how long the store may be out
        of reach on top of the wait. Raises `Held` if somebody else has it.
        """
        body = acquire_body(mode, slots, priority, lock_delay, max_hold, hard_limit, reentrant, fences)
        asked = self._driver.acquire([resource], body, list(fences), waiting(wait), timeout)
        lease = Lease(self, self._wait(asked)[0])
        if isinstance(fences, Mapping) and lease._grant.writes:
            lease.take_over(fences)
        return lease

    def acquire_all(
        self,
        resources: Sequence[str],
        *,
        wait: float | bool | None = None,
        mode: str = "exclusive",
        timeout: float = _ACQUIRE_TIMEOUT,
    ) -> list[Lease]:
        """Acquires several resources, all or none, in one step."""
        asked = self._driver.acquire(list(resources), acquire_body(mode), (), waiting(wait), timeout)
        return [Lease(self, grant) for grant in self._wait(asked)]

    def _wait(self, asked: Acquiring) -> list[Grant]:
        try:
            return asked.future.result()
        except BaseException as error:
            if not isinstance(error, TenureError):
                asked.call_off()  # interrupted: the queue is left
            raise

    def close(self, within: float | None = None) -> None:
        """Gives all leases back and ends the session, once no permit is out.

        Raises `StillOut` if permits are not back within so many seconds; then the session goes on.
        """
        self._driver.close(within)
        self._closed = True

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and os.getpid() == self._driver.pid and not self._driver.core.closed:
            self._closed = True
            self._driver.core.pool.submit(self._driver.close)

    def __repr__(self) -> str:
        return f"<Session {self._driver.session_number} of {self.holder} {self._driver.status}>"
