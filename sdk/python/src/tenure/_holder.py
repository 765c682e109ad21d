"""The holder: what a process may believe about one session and its leases.

It decides whether a permit may be given now, when the next renewal is sent, and what a lease is to be
called. It never reads a clock, sends anything or takes a lock: a driver does that. It is the Rust holder
(``crates/core/src/holder.rs``), which has the argument, and passes the same vectors:

- The deadline counts from *before the send* of the transmission that was answered, never from the answer.
- Only answers to opens and renewals move it, and only forward. A grant moves nothing.
- Notices and ends in an answer are taken in before the deadline moves: the longer deadline is not theirs.
- From the sending of a release, transfer or close on there is no permit, unless the store said no.
- The longer of the two clocks counts. If they disagree by more than rho, one of them is wrong.
- A renewer that runs late has been stopped, and so has the work: nothing is permitted until a renewal that
  was sent afterwards is answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ._timing import Deadline, Moment, Timing

_TRANSMISSIONS_MAX = 64
_FORGOTTEN_MAX = 4_096
_EARLY_MAX = 4_096


@dataclass(frozen=True)
class Jeopardy:
    """Why a lease that may still be ours is in doubt."""

    #: ``not_renewed``, ``past_deadline``, ``paused``, ``clocks_disagree`` or ``no_progress``.
    kind: str
    #: For ``paused`` how long, for ``clocks_disagree`` by how much, in nanoseconds.
    length: int = 0

    @property
    def forbids(self) -> bool:
        """Whether it forbids work even without strict mode."""
        return self.kind in ("past_deadline", "paused")

    def __str__(self) -> str:
        return {
            "not_renewed": "renewals are failing",
            "past_deadline": "the local deadline has passed and the store has not renewed the lease",
            "paused": f"the process stood still for {self.length / 1e9:.3f} s and the store has not renewed the lease since",
            "clocks_disagree": f"this machine's clocks disagree by {self.length / 1e9:.3f} s",
            "no_progress": "the worker reports no progress, so renewals have stopped",
        }[self.kind]


@dataclass(frozen=True)
class Suspect:
    """The stretch of time whose work is in doubt after a loss."""

    #: When the last acknowledged open or renewal was sent.
    since: Moment
    #: How long after that we could have been acting, in nanoseconds.
    length: int


@dataclass(frozen=True)
class LeaseEnd:
    """How a lease ended, as its holder has to see it."""

    #: ``released``, ``transferred``, ``expired``, ``lost`` or ``fenced``.
    kind: str
    #: What the store called it, if it said.
    why: str | None = None
    #: What is in doubt after a loss.
    suspect: Suspect | None = None
    #: For ``fenced``: the newer token.
    seen: int | None = None

    def __str__(self) -> str:
        if self.kind == "expired":
            return f"{self.why or 'expired'}; work had stopped in time"
        if self.kind == "lost":
            text = "lost" + (f" ({self.why})" if self.why else "")
            if self.why in (None, "expired"):
                text += " before its deadline by this machine's clock: the store's clock ran fast or the session was ended early"
            length = self.suspect.length if self.suspect else 0
            return f"{text}; work of {length / 1e9:.3f} s since the last acknowledged renewal is in doubt"
        if self.kind == "fenced":
            return f"fenced out; a fence has seen token {self.seen}"
        return self.kind


@dataclass(frozen=True)
class LeaseState:
    """What a lease is to its holder at one moment: ``held``, in ``jeopardy``, or ``ended``."""

    kind: str
    jeopardy: Jeopardy | None = None
    end: LeaseEnd | None = None

    def __str__(self) -> str:
        if self.jeopardy is not None:
            return f"in jeopardy: {self.jeopardy}"
        if self.end is not None:
            return f"ended: {self.end}"
        return self.kind


HELD = LeaseState("held")


@dataclass(frozen=True)
class NoPermit:
    """Why no permit is given."""

    #: ``unknown``, ``ended``, ``giving_back``, ``draining``, ``read_only``, ``not_armed``, ``jeopardy``,
    #: ``too_short`` or ``forked``.
    kind: str
    end: LeaseEnd | None = None
    jeopardy: Jeopardy | None = None
    missing: int = 0
    remaining: int = 0
    max_op: int = 0

    def __str__(self) -> str:
        if self.kind == "ended":
            return f"no permit: the lease has ended: {self.end}"
        if self.kind == "jeopardy":
            return f"no permit: {self.jeopardy}"
        if self.kind == "not_armed":
            return (
                f"no permit yet: {self.missing} of the resource's fences have not answered the barrier; "
                "take them over first"
            )
        if self.kind == "too_short":
            return (
                f"no permit: {self.remaining / 1e9:.3f} s are left, the operation may take "
                f"{self.max_op / 1e9:.3f} s; wait for the next renewal"
            )
        return {
            "unknown": "no permit: no lease with this token is known here",
            "giving_back": "no permit: the lease is being given back",
            "draining": "no permit: the lease is being drained",
            "read_only": "no permit to write: the lease is shared; take a read permit",
            "forked": "no permit: this process is a fork of the one that has the lease, and holds nothing",
        }[self.kind]


@dataclass
class Renewed:
    """The answer to a renewal: what is said of single leases, and what the deadline becomes by it."""

    number: int
    ttl: int
    revision: int = 0
    noticed: Sequence[tuple[int, str]] = ()
    ended: Sequence[tuple[int, str]] = ()
    incomplete: bool = False

    @property
    def has_events(self) -> bool:
        """Whether it said anything about single leases."""
        return bool(self.noticed or self.ended or self.incomplete)


@dataclass(frozen=True)
class HolderOptions:
    """How a holder wants to be held to its lease. Lengths in nanoseconds."""

    #: No permit from the first failed renewal on, until one succeeds again.
    strict: bool = False
    #: No renewal once no progress was reported for this long.
    progress_within: int | None = None
    #: A renewer that runs this late has been paused; R/4 if not set.
    pause_noticed: int | None = None


@dataclass
class _Notice:
    why: str
    deadline: Deadline | None


@dataclass
class _Lease:
    writes: bool
    learned: Moment
    unarmed: set[str]
    notice: _Notice | None
    end: LeaseEnd | None
    draining: bool = False
    giving_back: int = 0
    out: int = 0


@dataclass
class _Forgotten:
    tokens: set[int] = field(default_factory=set)
    floor: int = 0

    def add(self, token: int) -> None:
        self.tokens.add(token)
        if len(self.tokens) > _FORGOTTEN_MAX:
            lowest = min(self.tokens)
            self.tokens.remove(lowest)
            self.floor = max(self.floor, lowest)

    def __contains__(self, token: int) -> bool:
        return token <= self.floor or token in self.tokens


def _has_come(moment: Moment, now: Moment) -> bool:
    return now == moment or now.since(moment) > 0


class Holder:
    """The logic of one session's holder. Not safe for threads: the driver has a lock."""

    __slots__ = (
        "timing", "options", "_next_number", "_transmissions", "_answered", "_deadline", "_at", "_from", "_wait",
        "_tries", "_failing", "_waiting_for_list", "_pause_ended", "_pause_length", "_planned_wake", "_progress",
        "seen", "session_ended", "ended_early", "_leases", "_forgotten", "_early",
    )  # fmt: skip

    def __init__(self, timing: Timing, options: HolderOptions = HolderOptions()) -> None:
        self.timing = timing
        self.options = options
        self._next_number = 1
        # Sent and unanswered, oldest first: number, moment of sending, jitter.
        self._transmissions: deque[tuple[int, Moment, int]] = deque()
        self._answered = 0
        self._deadline: Deadline | None = None
        # The schedule: regular at `_at`; else a repetition `_wait` after `_from`; else at once.
        self._at: Moment | None = None
        self._from: Moment | None = None
        self._wait = 0
        self._tries = 0
        self._failing = False
        self._waiting_for_list: Deadline | None = None
        self._pause_ended: Moment | None = None
        self._pause_length = 0
        self._planned_wake: Moment | None = None
        self._progress: Moment | None = None
        self.seen = 0
        self.session_ended = False
        self.ended_early: int | None = None
        self._leases: dict[int, _Lease] = {}
        self._forgotten = _Forgotten()
        self._early: dict[int, _Notice] = {}

    # Opens and renewals.

    def transmit(self, now: Moment, jitter: int) -> int:
        """An open or a renewal is about to leave; ``now`` was read before that. Returns its number."""
        number = self._next_number
        self._next_number += 1
        if len(self._transmissions) == _TRANSMISSIONS_MAX:
            self._transmissions.popleft()
        self._transmissions.append((number, now, jitter))
        self._tries = self._tries + 1 if self._from is not None else 1
        self._at, self._from, self._wait = None, now, self.timing.detect
        return number

    def failed(self, number: int, now: Moment) -> None:
        """A transmission failed without reaching the store, or nobody knows whether it did."""
        latest = bool(self._transmissions) and self._transmissions[-1][0] == number
        if self._from is not None and latest:
            self._failing = True
            self._from, self._wait = now, self._backoff(self._tries)

    def opened(self, number: int, ttl: int, now: Moment) -> None:
        """The answer to an open."""
        known = self._deadline is not None
        # Only the first is believed: unlike a renewal's, the answer to a repeated open lists no notices.
        deadline = self._acknowledged(number, ttl)
        if deadline is not None and not known:
            self._move_deadline(deadline, now)

    def renewed(self, answer: Renewed, now: Moment) -> str:
        """The answer to a renewal. Returns ``all`` or ``ask_for_leases``."""
        # First what the answer says about single leases, by the deadline as it stands …
        for token, why in answer.noticed:
            self.noticed(token, why)
        for token, why in answer.ended:
            self.ended(token, why, now)
        self.seen = max(self.seen, answer.revision)
        # … and only then the deadline, which is for the others.
        deadline = self._acknowledged(answer.number, answer.ttl)
        if deadline is None:
            return "all"
        if answer.incomplete:
            self._waiting_for_list = deadline
            return "ask_for_leases"
        self._move_deadline(deadline, now)
        return "all"

    def unknown_session(self, now: Moment) -> str:
        """A renewal was answered with ``unknown_session``."""
        self.end_session(None, now)
        return "session_ended"

    def listed(self, held: Iterable[int], asked: Moment, now: Moment) -> None:
        """The store has listed the tokens that the session holds; it was asked at ``asked``."""
        keep = set(held)
        for token, lease in sorted(self._leases.items()):
            before = lease.end is None and asked != lease.learned and lease.learned.since(asked) == 0
            if before and token not in keep:
                self._end_lease(token, None, now)
        if self._waiting_for_list is not None:
            deadline, self._waiting_for_list = self._waiting_for_list, None
            self._move_deadline(deadline, now)

    def progressed(self, now: Moment) -> None:
        """The worker is getting on."""
        self._progress = now

    def woke(self, now: Moment) -> int | None:
        """The driver has woken up. Detects that the process stood still, and returns for how long."""
        if self.options.progress_within is not None and self._progress is None:
            self._progress = now
        late = self._late(now)
        if late is None:
            return None
        self._pause_ended, self._pause_length = now, late
        self._planned_wake = None
        return late

    def send_due(self, now: Moment) -> bool:
        """Whether an open or a renewal should be sent now."""
        if self.session_ended or self._stuck(now):
            return False
        if self._at is not None:
            return _has_come(self._at, now) or self._pause_ended is not None
        if self._from is not None:
            return now.since(self._from) >= self._wait
        return True

    def next_wake(self, now: Moment) -> Moment | None:
        """When the driver must wake up next. At least every R/4, so that a pause shows."""
        if self.session_ended:
            return None
        beat = now.plus(self.timing.detect)
        if self.send_due(now):
            send = now
        elif self._at is not None:
            send = self._at
        elif self._from is not None:
            send = self._from.plus(self._wait)
        else:
            send = beat  # held back for want of progress
        left = self.remaining(now)
        end = now.plus(left) if left else beat
        ahead = [wake for wake in (beat, send, end) if wake == now or not _has_come(wake, now)]
        wake = min(ahead, key=lambda wake: wake.since(now), default=beat)
        self._planned_wake = wake
        return wake

    def remaining(self, now: Moment) -> int:
        """What is left of the session's local deadline."""
        return 0 if self._deadline is None else self._deadline.remaining(now)

    def jeopardy(self, now: Moment) -> Jeopardy | None:
        """What puts the whole session in doubt at ``now``, the gravest first."""
        deadline = self._deadline
        if deadline is None or not deadline.remaining(now):
            return Jeopardy("past_deadline")
        # Seen by whoever looks first: the worker may run before the renewer does.
        late = self._late(now)
        if late is None and self._pause_ended is not None:
            late = self._pause_length
        if late is not None:
            return Jeopardy("paused", late)
        by = now.disagreement(deadline.sent)
        if by > self.timing.disagreement_max(now.since(deadline.sent)):
            return Jeopardy("clocks_disagree", by)
        if self._failing or self._overdue(now):
            return Jeopardy("not_renewed")
        return Jeopardy("no_progress") if self._stuck(now) else None

    def _overdue(self, now: Moment) -> bool:
        for number, sent, _ in self._transmissions:
            if number > self._answered:
                return now.since(sent) >= self.timing.detect
        return False

    def _acknowledged(self, number: int, ttl: int) -> Deadline | None:
        found = next((sent for sent in self._transmissions if sent[0] == number), None)
        if found is None:
            return None
        self._transmissions.remove(found)
        _, sent, jitter = found
        self._failing = False
        if number > self._answered:
            self._answered = number
            # Older ones may still be answered, but could move nothing.
            self._transmissions = deque(other for other in self._transmissions if other[0] > number)
            if not self._transmissions:
                self._at, self._from, self._tries = sent.plus(self.timing.renew_after(jitter)), None, 0
        if self._pause_ended is not None and _has_come(self._pause_ended, sent):
            self._pause_ended = None
        return Deadline(sent, self.timing.usable_of(ttl))

    def _move_deadline(self, deadline: Deadline, now: Moment) -> None:
        old = self._deadline
        if not self.session_ended and (old is None or deadline.remaining(now) >= old.remaining(now)):
            self._deadline = deadline

    def _late(self, now: Moment) -> int | None:
        if self._planned_wake is None:
            return None
        noticed = self.options.pause_noticed
        late = now.since(self._planned_wake)
        return late if late > (self.timing.detect if noticed is None else noticed) else None

    def _stuck(self, now: Moment) -> bool:
        within = self.options.progress_within
        return within is not None and self._progress is not None and now.since(self._progress) >= within

    def _backoff(self, tries: int) -> int:
        if tries <= 1:
            return 0
        detect = self.timing.detect
        return min(detect // 8 * (1 << min(tries - 2, 3)), detect)

    # Leases.

    def granted(
        self, token: int, writes: bool, named: Iterable[str], fences: Iterable[str], now: Moment
    ) -> None:
        """A lease was granted. Moves no deadline. If its acquire named fences, it is armed first."""
        if token in self._forgotten:
            return
        notice = self._early.pop(token, None)
        if token in self._leases:
            return
        names = set(named)
        unarmed = names | set(fences) if names and writes else set()
        ended = LeaseEnd("expired") if self.session_ended else None
        self._leases[token] = _Lease(writes, now, unarmed, notice, ended)

    def permit(self, token: int, now: Moment, max_op: int = 0, write: bool = True) -> int | NoPermit:
        """What is left for a permit of at least ``max_op``, which then counts as out; or why there is none."""
        lease = self._leases.get(token)
        if lease is None:
            return NoPermit("unknown")
        if write and not lease.writes:
            return NoPermit("read_only")
        remaining = self._usable(lease, now)
        if isinstance(remaining, NoPermit):
            return remaining
        if lease.draining:
            return NoPermit("draining")
        if lease.unarmed:
            return NoPermit("not_armed", missing=len(lease.unarmed))
        if remaining < max_op:
            return NoPermit("too_short", remaining=remaining, max_op=max_op)
        lease.out += 1
        return remaining

    def permit_done(self, token: int) -> None:
        """The work under a permit has ended."""
        lease = self._leases.get(token)
        if lease is not None and lease.out:
            lease.out -= 1

    def barrier(self, token: int, now: Moment) -> NoPermit | None:
        """Whether the token may be installed in fences: the one use of it without a permit."""
        lease = self._leases.get(token)
        if lease is None:
            return NoPermit("unknown")
        usable = self._usable(lease, now)
        return usable if isinstance(usable, NoPermit) else None

    def unarmed(self, token: int) -> list[str]:
        """The fences that have not answered the barrier."""
        lease = self._leases.get(token)
        return sorted(lease.unarmed) if lease else []

    def armed(self, token: int, fence: str) -> None:
        """A fence has installed the token."""
        lease = self._leases.get(token)
        if lease is not None:
            lease.unarmed.discard(fence)

    def barrier_refused(self, token: int, seen: int) -> None:
        """A fence has seen a newer token, so the resource is another's: the lease ends."""
        lease = self._leases.get(token)
        if lease is not None and lease.end is None:
            lease.end = LeaseEnd("fenced", seen=seen)

    def drain(self, token: int) -> None:
        """Closes the intake: no new permit, those that are out go on."""
        lease = self._leases.get(token)
        if lease is not None:
            lease.draining = True

    def resume(self, token: int) -> None:
        """Opens the intake again: the handover was called off before anything was sent."""
        lease = self._leases.get(token)
        if lease is not None:
            lease.draining = False

    def permits_out(self, token: int) -> int:
        """Permits that are out."""
        lease = self._leases.get(token)
        return lease.out if lease else 0

    def give_back(self, token: int) -> int:
        """A release, transfer or confirmation is about to be sent. Nonzero: refused, so many permits are out."""
        lease = self._leases.get(token)
        if lease is None:
            return 0
        if not lease.out:
            lease.giving_back += 1
        return lease.out

    def give_back_all(self) -> int:
        """The session is about to be closed. Nonzero: refused, so many permits are out."""
        out = sum(lease.out for lease in self._leases.values())
        if not out:
            for lease in self._leases.values():
                lease.giving_back += 1
        return out

    def give_back_refused(self, token: int) -> None:
        """The store said no to what `give_back` announced: nothing was changed by it."""
        lease = self._leases.get(token)
        if lease is not None:
            lease.giving_back = max(lease.giving_back - 1, 0)

    def give_back_wait(self, token: int, asked: Moment, now: Moment) -> int:
        """How much longer the answer to a give-back is worth waiting for: until the lease's deadline."""
        left = self.lease_remaining(token, now)
        if not left and not self.lease_remaining(token, asked):
            return max(self.timing.detect - now.since(asked), 0)
        return left

    def gave_back(self, token: int, why: str) -> None:
        """The store has taken the lease back, or granted it to the successor (``transferred``)."""
        lease = self._leases.get(token)
        if lease is not None and lease.end is None:
            lease.end = LeaseEnd("transferred" if why == "transferred" else "released")

    def noticed(self, token: int, why: str) -> None:
        """The store has given notice. Only the first counts; the deadline that it froze does not move."""
        lease = self._leases.get(token)
        if lease is not None:
            if lease.notice is None:
                lease.notice = _Notice(why, self._deadline)
        elif token not in self._forgotten:
            # The grant itself is still on its way. When it comes, the deadline may have moved: not for it.
            self._early.setdefault(token, _Notice(why, self._deadline))
            if len(self._early) > _EARLY_MAX:
                oldest = min(self._early)
                del self._early[oldest]
                self._forgotten.add(oldest)

    def ended(self, token: int, why: str, now: Moment) -> None:
        """The store has ended the lease without being asked to."""
        if token not in self._leases:
            # Its grant may still be on its way, and must not revive it.
            self._early.pop(token, None)
            self._forgotten.add(token)
        self._end_lease(token, why, now)

    def end_session(self, why: str | None, now: Moment) -> None:
        """The session has ended, by the store's word or because we closed it."""
        for token in list(self._leases):
            self._end_lease(token, why, now)
        left = self.remaining(now)
        if not self.session_ended and why in (None, "expired") and left:
            self.ended_early = left
        self.session_ended = True

    def give_up(self, now: Moment) -> bool:
        """The application gives up waiting for the store; refused while it could still be acting."""
        may = not self.remaining(now)
        if may:
            self.end_session(None, now)
        return may

    def state(self, token: int, now: Moment) -> LeaseState | None:
        """What the lease is at ``now``; ``None`` if no lease with this token is known here."""
        lease = self._leases.get(token)
        if lease is None:
            return None
        if lease.end is not None:
            return LeaseState("ended", end=lease.end)
        if not self._left(lease, now):
            return LeaseState("jeopardy", Jeopardy("past_deadline"))
        doubt = self.jeopardy(now)
        return HELD if doubt is None else LeaseState("jeopardy", doubt)

    def notice(self, token: int) -> str | None:
        """Why the lease is about to end, if notice was given."""
        lease = self._leases.get(token)
        return lease.notice.why if lease and lease.notice else None

    def lease_remaining(self, token: int, now: Moment) -> int:
        """What is left of the lease at ``now``: of the session, or of the notice."""
        lease = self._leases.get(token)
        return self._left(lease, now) if lease else 0

    def tokens(self) -> list[int]:
        """The leases that are known, ended ones included until they are forgotten."""
        return sorted(self._leases)

    def forget(self, token: int) -> None:
        """Forgets a lease that has ended; one that has not is kept."""
        lease = self._leases.get(token)
        if lease is not None and lease.end is not None:
            del self._leases[token]
            self._forgotten.add(token)

    def _usable(self, lease: _Lease, now: Moment) -> int | NoPermit:
        if lease.end is not None:
            return NoPermit("ended", end=lease.end)
        if lease.giving_back:
            return NoPermit("giving_back")
        remaining = self._left(lease, now)
        if not remaining:
            return NoPermit("jeopardy", jeopardy=Jeopardy("past_deadline"))
        doubt = self.jeopardy(now)
        if doubt is not None and (doubt.forbids or self.options.strict):
            return NoPermit("jeopardy", jeopardy=doubt)
        return remaining

    def _left(self, lease: _Lease, now: Moment) -> int:
        session = self.remaining(now)
        if lease.notice is None:
            return session
        frozen = lease.notice.deadline
        return min(session, frozen.remaining(now) if frozen else 0)

    def _end_lease(self, token: int, why: str | None, now: Moment) -> None:
        lease = self._leases.get(token)
        if lease is None or lease.end is not None:
            return
        if why in ("released", "transferred") or lease.giving_back:
            lease.end = LeaseEnd("transferred" if why == "transferred" else "released")
            return
        # The server ends nothing of its own before our deadline, unless it is told to, at once. So past the
        # deadline "expired", or no word at all, means that we had stopped; as does any end by notice.
        due = why in (None, "expired") or lease.notice is not None
        if due and not self._left(lease, now):
            lease.end = LeaseEnd("expired", why)
            return
        deadline = self._deadline
        if deadline is None:
            suspect = Suspect(now, 0)
        else:
            suspect = Suspect(deadline.sent, min(deadline.usable, now.since(deadline.sent)))
        lease.end = LeaseEnd("lost", why, suspect)
