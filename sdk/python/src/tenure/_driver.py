"""The driver of one session: passes events and the time to its logic (`Holder`) and carries out what follows.

It contains no lease rule of its own. One lock guards a session's logic; nothing is sent and no code of the
application runs under it, so a renewal waits at most for a few comparisons.
"""

from __future__ import annotations

import math
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ._errors import LeaseEnded, Refused, SessionEnded, StillOut, TenureError, Unanswered
from ._holder import Holder, HolderOptions, LeaseEnd, LeaseState, NoPermit, Renewed
from ._http import Attempt, Endpoint, is_unknown_session, quoted
from ._timing import MS, Moment, Timing

if TYPE_CHECKING:
    from ._core import Core

_POLL_MIN, _POLL_MAX = 1.0, 10.0


@dataclass(frozen=True)
class LeaseStatus:
    """What a lease is to its holder, and whether the store wants it back."""

    state: LeaseState
    #: Why the store wants it back: give it back soon, or it ends at the deadline as it stood.
    notice: str | None = None

    @property
    def must_stop(self) -> bool:
        """Whether work under the lease has to stop whatever is left."""
        doubt = self.state.jeopardy
        return self.notice is not None or self.state.end is not None or (doubt is not None and doubt.forbids)

    def __str__(self) -> str:
        return f"{self.state}" if self.notice is None else f"{self.state}; the store wants it back: {self.notice}"


@dataclass(frozen=True)
class Grant:
    """What the store said when it granted a lease."""

    resource: str
    token: int
    generation: int
    mode: Any
    slot: int | None
    waited: float
    fences: tuple[str, ...]
    session_number: int

    @property
    def writes(self) -> bool:
        """Whether it has write authority."""
        return bool(self.mode != "shared")

    @property
    def scope(self) -> str:
        """What fences know it by: the resource, or ``resource#slot``."""
        return self.resource if self.slot is None else f"{self.resource}#{self.slot}"


@dataclass
class KeepOptions:
    """How a session is to be kept."""

    holder: str
    timing: Timing
    logic: HolderOptions
    open_within: float
    stop_before: int
    hard_stop: str | Callable[[int], None] | None
    events: bool


@dataclass
class Kept:
    """A lease that somebody has, or that is being given back."""

    grant: Grant
    status: LeaseStatus
    stop: threading.Event = field(default_factory=threading.Event)
    hooks: list[Callable[[LeaseStatus], None]] = field(default_factory=list)
    giving_back: bool = False
    overstayed: bool = False


@dataclass
class Send:
    """One transmission to make."""

    driver: SessionDriver
    number: int
    #: The endpoint that left the last one unanswered.
    not_to: Endpoint | None


class Acquiring:
    """An acquire under way, which can be called off."""

    def __init__(self, driver: SessionDriver) -> None:
        self.driver = driver
        self.attempt = Attempt()
        self.future: Future[list[Grant]] = Future()
        self.called_off = False

    def call_off(self) -> None:
        """Nobody waits for it any more: it is undone, however far it got."""
        with self.driver.lock:
            self.called_off = True
            self.driver.changed.notify_all()
        self.attempt.hang_up()


class SessionDriver:
    """One session of this process."""

    def __init__(self, core: Core, options: KeepOptions) -> None:
        self.core = core
        self.options = options
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.logic = Holder(options.timing, options.logic)
        self.nonce = secrets.token_hex(16)
        self.id: str | None = None
        self.session_number: int | None = None
        #: ``opening``, ``open``, ``failed`` or ``ended``.
        self.status = "opening"
        self.failure: TenureError | None = None
        self.closing = False
        self.leases: dict[int, Kept] = {}
        self.due = 0  # the renewer's
        self.asked: Endpoint | None = None
        self._unanswered = 0
        self._opening_since: Moment | None = None
        self._next = 1
        self._awaited: set[int] = set()
        self._under_way: dict[int, tuple[str, ...]] = {}
        self._attempts: set[Attempt] = set()
        self._listening = False

    def forked(self) -> None:
        """Called in a fork of the process: what the parent holds is the parent's."""
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)

    # For the renewer.

    def next_transmission(self, now: Moment) -> tuple[Send | None, Moment | None]:
        """Is there something to send, and when should the renewer look again? ``None``: never again."""
        core = self.core
        paused: int | None = None
        send: Send | None = None
        overstaying: list[int] = []
        with self.lock:
            if self.logic.session_ended:
                return None, None
            if self.id is None and self._opening_failed(now):
                return None, None
            paused = self.logic.woke(now)
            if self.closing:
                # It is not kept alive any more, so if the close is lost it ends by itself.
                if self.logic.give_up(now):
                    self._ended(now)
                    return None, None
                return None, now.plus(min(self.logic.remaining(now), self.options.timing.detect))
            if self.logic.send_due(now):
                # Read before the send: the deadline will count from `now`.
                number = self.logic.transmit(now, secrets.randbits(32))
                send = Send(self, number, self.asked if self._unanswered else None)
                self._unanswered += 1
            self._publish(now)
            wake = self.logic.next_wake(now)
            if self.leases:
                wake = self._earlier_stop(wake, now)
                if self.options.hard_stop is not None:
                    overstaying = self._overstaying(now)
            report = paused is not None and self.id is not None and bool(self.leases)
        if report and paused is not None:
            # For the history that people read. Nothing depends on it.
            core.pool.submit(core.tell, "POST", "/v1/session:paused", {"paused_ms": paused // MS}, self.id)
        for token in overstaying:
            core.hard_stop(self.options.hard_stop, token)
        return send, wake

    def opened(self, number: int, answer: Any, error: TenureError | None) -> None:
        """What came of one transmission of the open."""
        now = self.core.clock.now()
        with self.lock:
            if error is None:
                self._unanswered = 0
                self.logic.opened(int(answer["number"]), int(answer["ttl_ms"]) * MS, now)
                if self.id is None:
                    self.id = str(answer["session"])
                    self.session_number = int(answer["session_number"])
                    if self.status == "opening":
                        self.status = "open"
            else:
                self.logic.failed(number, now)
                used = isinstance(error, Refused) and error.code == "nonce_used"
                if self.id is None:
                    if used:
                        # An open whose answer was lost made a session whose TTL is over. Nothing was done under it.
                        self.nonce = secrets.token_hex(16)
                    elif isinstance(error, Refused) and not error.passes and error.effect == "not_applied":
                        self.logic.end_session(None, now)
                        self.status, self.failure = "failed", error
                    else:
                        self.failure = error
            self.changed.notify_all()

    def renewed(self, number: int, answer: Any, error: TenureError | None) -> None:
        """What came of one transmission of a renewal."""
        now = self.core.clock.now()
        ask = False
        seen: int | None = None
        with self.lock:
            if error is not None and not is_unknown_session(error):
                self.logic.failed(number, now)
                self._publish(now)
                return
            self._unanswered = 0
            if error is not None:
                self.logic.unknown_session(now)
                self._ended(now)
                return
            renewed = _renewed(answer)
            # Notices and ends are taken in before the deadline moves: `Holder.renewed` does it in this order.
            taken = self.logic.renewed(renewed, now)
            self._publish(now)
            if taken == "ask_for_leases":
                ask = True
            elif renewed.has_events:
                seen = self.logic.seen
        if ask:
            self.core.pool.submit(self._ask_for_leases)
        elif seen is not None:
            self.core.pool.submit(self.core.tell, "POST", "/v1/session:seen", {"revision": seen}, self.id)

    def _opening_failed(self, now: Moment) -> bool:
        if self._opening_since is None:
            self._opening_since = now
        if now.since(self._opening_since) < self.options.open_within * 1e9:
            return False
        # Whatever was sent and not answered may have opened it. Nobody renews it, so it ends by itself.
        self.logic.end_session(None, now)
        self.status = "failed"
        if self.failure is None:
            self.failure = Unanswered("the session could not be opened in time", "unknown")
        self.changed.notify_all()
        return True

    def _earlier_stop(self, wake: Moment | None, now: Moment) -> Moment | None:
        for token in self.leases:
            left = self.logic.lease_remaining(token, now)
            for stop in (left, left - self.options.stop_before):
                if stop > 0 and wake is not None and stop < wake.since(now):
                    wake = now.plus(stop)
        return wake

    def _overstaying(self, now: Moment) -> list[int]:
        found = []
        for token, kept in self.leases.items():
            over = not self.logic.lease_remaining(token, now) and self.logic.permits_out(token) > 0
            if over and not kept.overstayed:
                kept.overstayed = True
                found.append(token)
        return found

    def _ask_for_leases(self) -> None:
        asked = self.core.clock.now()
        try:
            _, answer = self.core.command("GET", "/v1/session", None, session=self.id, until=self.seconds_left)
        except TenureError:
            return  # The next renewal will say again that its list is incomplete.
        now = self.core.clock.now()
        with self.lock:
            self.logic.listed([int(held["token"]) for held in answer["held"]], asked, now)
            self._publish(now)
            seen = self.logic.seen
        self.core.tell("POST", "/v1/session:seen", {"revision": seen}, self.id)

    # For the application.

    def wait_open(self) -> None:
        """Waits until the session is open, or says why it is not."""
        with self.lock:
            while self.status == "opening":
                self.changed.wait()
            if self.status == "failed":
                assert self.failure is not None
                raise self.failure

    def remaining(self) -> int:
        """What is left of the session's local deadline."""
        with self.lock:
            return self.logic.remaining(self.core.clock.now())

    def seconds_left(self) -> float:
        """The same in seconds: how long it is worth asking the store something."""
        return self.remaining() / 1e9

    def permit(self, token: int, max_op: int, write: bool) -> tuple[Moment, int] | NoPermit:
        """When a permit was taken and what was left then; or why there is none."""
        if os.getpid() != self.pid:
            return NoPermit("forked")
        with self.lock:
            # Read under the lock: nothing that was known when the permit is given is older than this.
            now = self.core.clock.now()
            left = self.logic.permit(token, now, max_op, write)
        return left if isinstance(left, NoPermit) else (now, left)

    def permit_done(self, token: int) -> None:
        """The work under a permit has ended."""
        if os.getpid() != self.pid:
            return
        with self.lock:
            self.logic.permit_done(token)
            if self.closing or (token in self.leases and self.leases[token].giving_back):
                self.changed.notify_all()

    def lease_status(self, token: int) -> tuple[LeaseStatus, int]:
        """What the lease is now, and what is left of it."""
        with self.lock:
            now = self.core.clock.now()
            return self._status(token, now), self.logic.lease_remaining(token, now)

    def with_logic(self, change: Callable[[Holder, Moment], Any]) -> Any:
        """Changes something about the logic, then tells whom it concerns."""
        with self.lock:
            now = self.core.clock.now()
            found = change(self.logic, now)
            self._publish(now)
            return found

    def numbered(self) -> dict[str, int]:
        """The next number of the session, awaited from now on; what a command's body says of it."""
        number = self._next
        self._next += 1
        self._awaited.add(number)
        return {"number": number, "lowest_awaited": min(self._awaited)}

    def command(self, method: str, path: str, body: dict[str, Any]) -> Any:
        """A numbered command of the session: done once, however often it is sent."""
        with self.lock:
            numbered = self.numbered()
        try:
            return self.core.command(method, path, {**body, **numbered}, session=self.id, until=self.seconds_left)[1]
        finally:
            with self.lock:
                self._awaited.discard(numbered["number"])

    # Acquires.

    def acquire(self, resources: Sequence[str], body: dict[str, Any], named: Sequence[str], wait: float | None,
                timeout: float) -> Acquiring:  # fmt: skip
        """Asks for leases under a new number. ``wait`` is ``None`` for not at all, infinite for ever."""
        asked = Acquiring(self)
        done = self.core.pool.submit(self._acquire, asked, list(resources), body, named, wait, timeout)

        def told(done: Future[list[Grant]]) -> None:
            error = done.exception()
            if error is not None:
                asked.future.set_exception(error)
            else:
                asked.future.set_result(done.result())

        done.add_done_callback(told)
        return asked

    def _acquire(self, asked: Acquiring, resources: list[str], body: dict[str, Any], named: Sequence[str],
                 wait: float | None, timeout: float) -> list[Grant]:  # fmt: skip
        clock = self.core.clock
        begun = clock.now()
        with self.lock:
            # An acquire that overtakes the release before it would find the resource held by its own session.
            while any(name in resources for names in self._under_way.values() for name in names):
                if self.logic.session_ended or asked.called_off:
                    break
                self.changed.wait(1.0)
            if self.logic.session_ended:
                raise _session_ended(None, "not_applied")
            if asked.called_off:
                raise Unanswered("the acquire was called off before it was sent", "not_applied")
            numbered = self.numbered()
            self._attempts.add(asked.attempt)
        number = numbered["number"]
        poll = 0.0
        body = {**body, **numbered}
        if wait is not None:
            poll = min(max(self.options.timing.renew_every / 1e9, _POLL_MIN), _POLL_MAX)
            body["wait_ms"] = "forever" if math.isinf(wait) else math.ceil(wait * 1000)
            body["poll_ms"] = int(poll * 1000)
        if len(resources) == 1:
            path = f"/v1/leases/{quoted(resources[0])}:acquire"
        else:
            path, body = "/v1/leases:acquire", {**body, "resources": resources}

        def until() -> float:
            if asked.called_off or self.status == "ended":
                return 0.0
            return (wait or 0.0) + timeout - clock.now().since(begun) / 1e9

        sent = False
        try:
            while True:
                status, answer = self.core.command(
                    "POST", path, body, session=self.id, until=until, attempt=asked.attempt, poll=poll, sent=sent
                )
                sent = True
                if status != 202:
                    break
            grants = _grants(answer, resources)
        except TenureError as error:
            if is_unknown_session(error):
                self.session_gone(None)
            elif error.effect != "not_applied" or asked.called_off:
                self._cancel(number, resources)
            if self.status == "ended" and not isinstance(error, Refused):
                raise _session_ended(error, "unknown") from error
            raise
        finally:
            with self.lock:
                self._attempts.discard(asked.attempt)
                self._awaited.discard(number)
        now = clock.now()
        with self.lock:
            if not asked.called_off:
                for grant in grants:
                    self.logic.granted(grant.token, grant.writes, named, grant.fences, now)
                    self.leases.setdefault(grant.token, Kept(grant, self._status(grant.token, now)))
                self._publish(now)
                listen = self.options.events and not self._listening
                self._listening = self._listening or listen
        if asked.called_off:
            self._cancel(number, resources)
            raise Unanswered("the acquire was called off", "unknown")
        if listen:
            self.core.listen(self)
        self.core.renewer.nudge(self)
        return grants

    def _cancel(self, acquire: int, resources: Sequence[str]) -> None:
        """Undoes an acquire, in the background: it leaves the queue, or what it was granted is released."""
        with self.lock:
            if self.logic.session_ended:
                return
            # The number stays awaited until its cancel is answered, or the store would forget it before.
            self._awaited.add(acquire)
            numbered = self.numbered()
            self._under_way[numbered["number"]] = tuple(resources)
        body = {"acquire": acquire, **numbered}

        def cancel() -> None:
            try:
                self.core.command("POST", "/v1/leases:cancel", body, session=self.id, until=self.seconds_left)
            except TenureError:
                pass  # What it may have been granted ends with the session.
            finally:
                with self.lock:
                    self._awaited.discard(acquire)
                    self._answered(numbered["number"])

        self.core.pool.submit(cancel)

    def _answered(self, number: int) -> None:
        self._awaited.discard(number)
        self._under_way.pop(number, None)
        self.changed.notify_all()

    # Giving back.

    def give_back(self, token: int, to: int | None = None, rest: float | None = None,
                  within: float | None = None) -> LeaseEnd:  # fmt: skip
        """Gives a lease back: no new permit, then waits for those that are out, then tells the store."""
        self.core.check_process()
        clock = self.core.clock
        asked = clock.now()
        with self.lock:
            kept = self.leases.get(token)
            if kept is None:
                return LeaseEnd("expired")
            kept.giving_back = True
            self.logic.drain(token)
            self._publish(asked)
            while True:
                now = clock.now()
                state = self.logic.state(token, now)
                if state is None or state.end is not None:
                    kept.giving_back = False
                    return state.end if state and state.end else LeaseEnd("expired")
                out = self.logic.give_back(token)
                if not out:
                    break
                left = self.logic.give_back_wait(token, asked, now)
                if within is not None:
                    left = min(left, int(within * 1e9) - now.since(asked))
                if left <= 0:
                    # What to do with work that does not end is the application's to decide.
                    kept.giving_back = False
                    self.logic.resume(token)
                    raise StillOut(out)
                clock.wait(self.changed, min(left, 500 * MS))
            numbered = self.numbered()
            self._under_way[numbered["number"]] = (kept.grant.resource,)
        path = f"/v1/leases/{quoted(kept.grant.resource)}"
        body: dict[str, Any]
        if to is None:
            path, body = f"{path}:release", {"token": token, **numbered}
            if rest is not None:
                body["rest_ms"] = math.ceil(rest * 1000)
        else:
            path, body = f"{path}:transfer", {"to": to, **numbered}

        def until() -> float:
            with self.lock:
                return self.logic.give_back_wait(token, asked, clock.now()) / 1e9

        try:
            self.core.command("POST", path, body, session=self.id, until=until)
        except TenureError as error:
            if is_unknown_session(error):
                self.session_gone(None)
            else:
                with self.lock:
                    if error.effect == "not_applied":
                        self.logic.give_back_refused(token)
                        self.logic.resume(token)
                        kept.giving_back = False
                    state = self.logic.state(token, clock.now())
                if state is None or state.end is None:
                    raise
        else:
            with self.lock:
                self.logic.gave_back(token, "released" if to is None else "transferred")
        finally:
            with self.lock:
                self._answered(numbered["number"])
                self._publish(clock.now())
        with self.lock:
            state = self.logic.state(token, clock.now())
        return state.end if state is not None and state.end is not None else LeaseEnd("expired")

    def drop(self, token: int) -> None:
        """Nobody has the lease any more: it is given back in the background, then forgotten."""
        if os.getpid() != self.pid:
            return

        def give_back() -> None:
            try:
                while True:
                    try:
                        self.give_back(token)
                        return
                    except StillOut:
                        continue
            except TenureError:
                pass  # It ends with the session.
            finally:
                with self.lock:
                    self.logic.forget(token)
                    if self.logic.state(token, self.core.clock.now()) is None:
                        self.leases.pop(token, None)

        self.core.pool.submit(give_back)

    def forget(self, token: int) -> None:
        """A lease that has ended and that nobody looks at any more."""
        with self.lock:
            self.logic.forget(token)
            if token not in self.logic.tokens():
                self.leases.pop(token, None)

    def close(self, within: float | None = None) -> None:
        """Ends the session as soon as no permit is out, and with it all of its leases."""
        self.core.check_process()
        clock = self.core.clock
        begun = clock.now()
        with self.lock:
            tokens = self.logic.tokens()
            for token in tokens:
                self.logic.drain(token)
                if token in self.leases:
                    self.leases[token].giving_back = True
            self._publish(begun)
            while self.status == "opening":
                self.changed.wait()
            while not self.logic.session_ended:
                out = self.logic.give_back_all()
                if not out:
                    break
                now = clock.now()
                left = math.inf if within is None else within * 1e9 - now.since(begun)
                if left <= 0:
                    for token in tokens:
                        self.logic.resume(token)
                    raise StillOut(out)
                clock.wait(self.changed, int(min(left, 500 * MS)))
            if self.logic.session_ended or self.closing:
                return
            self.closing = True
            numbered = self.numbered()
        try:
            self.core.command("DELETE", "/v1/session", dict(numbered), session=self.id, until=self.seconds_left)
        except TenureError:
            pass  # Closed, ended before, or expiring by itself: it ends with any answer.
        self.session_gone("released")

    # Events, and the end.

    def event(self, kind: str, data: Any) -> None:
        """What the store pushed. Nothing relies on it: the next renewal reports what was missed."""
        now = self.core.clock.now()
        if kind == "closed":
            self.session_gone(data.get("why") if isinstance(data, dict) else None)
            return
        if kind not in ("noticed", "ended") or not isinstance(data, dict) or "token" not in data:
            return
        with self.lock:
            if kind == "noticed":
                self.logic.noticed(int(data["token"]), str(data.get("why", "revoked")))
            else:
                self.logic.ended(int(data["token"]), str(data.get("why", "expired")), now)
            self._publish(now)
        self.core.renewer.nudge(self)

    def session_gone(self, why: str | None) -> None:
        """The session has ended, by the store's word or because we closed it."""
        now = self.core.clock.now()
        with self.lock:
            self.logic.end_session(why, now)
            self._ended(now)

    def _ended(self, now: Moment) -> None:
        self._publish(now)
        if self.status != "failed":
            self.status = "ended"
        for attempt in list(self._attempts):
            attempt.hang_up()
        self.changed.notify_all()
        self.core.renewer.nudge(self)

    def _status(self, token: int, now: Moment) -> LeaseStatus:
        state = self.logic.state(token, now)
        if state is None:
            kept = self.leases.get(token)
            # Forgotten, which happens after its end only.
            return kept.status if kept else LeaseStatus(LeaseState("ended", end=LeaseEnd("expired")))
        return LeaseStatus(state, self.logic.notice(token))

    def _publish(self, now: Moment) -> None:
        """Tells everybody what has changed about the leases."""
        for token, kept in self.leases.items():
            status = self._status(token, now)
            stop = status.must_stop or self.logic.lease_remaining(token, now) <= self.options.stop_before
            if stop and not kept.stop.is_set():
                kept.stop.set()
                self.changed.notify_all()
            elif not stop and kept.stop.is_set():
                # Held again. Who was told to stop stays told; whoever asks from now on starts afresh.
                kept.stop = threading.Event()
            if _differs(kept.status, status):
                kept.status = status
                self.changed.notify_all()
                for hook in kept.hooks:
                    self.core.call_hook(hook, status)


def _differs(old: LeaseStatus, new: LeaseStatus) -> bool:
    """How long a pause was is no news once it is known that there was one."""
    if old.notice != new.notice or old.state.kind != new.state.kind or old.state.end != new.state.end:
        return True
    kinds = [status.state.jeopardy.kind if status.state.jeopardy else None for status in (old, new)]
    return kinds[0] != kinds[1]


def _renewed(answer: Any) -> Renewed:
    noticed = [(int(one["token"]), str(one["why"])) for one in answer.get("noticed", ())]
    ended = [(int(one["token"]), str(one["why"])) for one in answer.get("ended", ())]
    return Renewed(
        int(answer["number"]), int(answer["ttl_ms"]) * MS, int(answer["last_lease_revision"]), noticed, ended,
        bool(answer.get("incomplete", False)),
    )  # fmt: skip


def _grants(answer: Any, resources: Sequence[str]) -> list[Grant]:
    found = answer["leases"] if "leases" in answer else [answer]
    grants = [
        Grant(
            str(one["resource"]), int(one["token"]), int(one["generation"]), one["mode"], one.get("slot"),
            int(one.get("waited_ms", 0)) / 1000, tuple(one.get("fences", ())), int(one["session_number"]),
        )
        for one in found
    ]  # fmt: skip
    if sorted(grant.resource for grant in grants) != sorted(resources):
        raise Unanswered(f"an acquire was answered with grants of {[grant.resource for grant in grants]}", "unknown")
    return sorted(grants, key=lambda grant: resources.index(grant.resource))


def _session_ended(cause: TenureError | None, effect: Any) -> SessionEnded:
    why = "" if cause is None else f" ({cause})"
    return SessionEnded("unknown_session", f"the session has ended{why}", effect=effect)


__all__ = ["Acquiring", "Grant", "KeepOptions", "LeaseEnded", "LeaseStatus", "Send", "SessionDriver"]
