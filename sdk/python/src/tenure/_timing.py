"""The five numbers of a lease and what must be true of them: TTL, R, rho, net, sigma.

It decides whether numbers fit together and how long a holder may believe. It never reads a clock. All
lengths are whole nanoseconds, so that every language computes the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MS = 1_000_000
SECOND = 1_000_000_000
_MILLION = 1_000_000
_U32_MAX = 0xFFFF_FFFF
_SIGMA_MIN = MS


class Moment(NamedTuple):
    """One reading of this process's clocks, in nanoseconds; it means nothing in any other process.

    Two clocks, because they fail differently: the boot-time clock counts suspended time but is slewed, the
    raw clock is never slewed but stands still in suspend. A holder counts the longer of the two.
    """

    boot: int
    raw: int

    def since(self, earlier: Moment) -> int:
        """The longer of the two elapsed times: what a holder must assume has passed."""
        boot = self.boot - earlier.boot
        raw = self.raw - earlier.raw
        return max(boot, raw, 0)

    def disagreement(self, earlier: Moment) -> int:
        """How far the two clocks disagree about the time since ``earlier``."""
        boot = max(self.boot - earlier.boot, 0)
        raw = max(self.raw - earlier.raw, 0)
        return abs(boot - raw)

    def plus(self, by: int) -> Moment:
        """When both clocks will have advanced by ``by``; for planning, not for judging."""
        return Moment(self.boot + by, self.raw + by)


class BrokenTiming(ValueError):
    """Numbers that do not fit together; ``broken`` names every inequality that does not hold."""

    def __init__(self, message: str, broken: tuple[str, ...]) -> None:
        super().__init__(message)
        self.broken = broken


@dataclass(frozen=True)
class Bounds:
    """What the world is bounded by, in nanoseconds; the numbers are checked against it."""

    pause: int = 100 * MS
    retry: int = 50 * MS
    reconnect: int = 100 * MS
    max_op: int = 0
    ttl_min: int = 500 * MS
    ttl_max: int = 3600 * SECOND


@dataclass(frozen=True)
class Timing:
    """Five numbers, in nanoseconds. `checked` refuses numbers that do not fit together."""

    ttl: int
    renew_every: int
    rho_ppm: int
    net: int
    sigma: int

    @staticmethod
    def for_ttl(ttl: int) -> Timing:
        """The usual numbers: R a third of the TTL, rho 500 ppm, net 50 ms, sigma 2 % and at least 100 ms."""
        return Timing(ttl, ttl // 3, 500, 50 * MS, max(ttl // 50, 100 * MS))

    def broken(self, bounds: Bounds = Bounds()) -> tuple[str, ...]:
        """The inequalities that do not hold, the most serious first."""
        drift = self.drift(self.ttl)
        usable = max(self.ttl - self.sigma - drift, 0)
        renewed = self.renew_every + self.detect + bounds.reconnect + bounds.retry
        worked = self.renew_every + self.net + bounds.max_op
        checks = (
            (self.sigma + drift < self.ttl, "nothing_usable"),
            (self.sigma >= max(bounds.pause, _SIGMA_MIN), "slack_too_small"),
            (bounds.ttl_min <= self.ttl <= bounds.ttl_max, "outside_limits"),
            (self.ttl >= 2 * (self.net + bounds.pause), "below_floor"),
            (self.renew_every > 0, "renews_without_pause"),
            (renewed < usable, "renews_too_late"),
            (worked <= usable, "work_too_long"),
        )
        return tuple(name for holds, name in checks if not holds)

    def checked(self, bounds: Bounds = Bounds()) -> Timing:
        """These numbers, or `BrokenTiming`."""
        broken = self.broken(bounds)
        if broken:
            raise BrokenTiming(f"{_WORDS[broken[0]]}: {self}", broken)
        return self

    @property
    def detect(self) -> int:
        """R/4: how long an attempt may go unanswered, and the longest wait between two attempts."""
        return self.renew_every // 4

    def drift(self, length: int) -> int:
        """What two clocks may differ by after ``length``, rounded up."""
        return -(-length * self.rho_ppm // _MILLION)

    def renew_after(self, jitter: int) -> int:
        """R, spread by 10 % either way. ``jitter`` is drawn evenly from 32 bits."""
        spread = self.renew_every // 5
        return self.renew_every - spread // 2 + spread * jitter // _U32_MAX

    def usable_of(self, ttl: int) -> int:
        """How long after its sending an answer with this TTL is worth: ttl (1 - rho) - sigma."""
        return max(ttl - self.drift(ttl) - self.sigma, 0)

    def disagreement_max(self, length: int) -> int:
        """How far the two clocks may disagree after ``length`` before one of them is wrong."""
        return self.drift(length) + self.sigma


_WORDS = {
    "nothing_usable": "nothing of the TTL is usable: sigma + rho*ttl < ttl does not hold; lengthen the TTL",
    "slack_too_small": "sigma does not cover the scheduling bound: raise sigma",
    "outside_limits": "the TTL is outside the server's limits, 500 ms to 1 h",
    "below_floor": "the TTL is below its floor: ttl >= 2*(net + pause) does not hold; lengthen it",
    "renews_without_pause": "R is zero: renewals need a length of time between them",
    "renews_too_late": "one lost renewal would end the lease: R + R/4 + reconnect + retry < usable TTL does not hold",
    "work_too_long": "an operation does not fit between renewals: R + net + max_op <= usable TTL does not hold",
}


class Deadline(NamedTuple):
    """Until when a holder may act: a moment of sending and a length, because which clock counts shows only later."""

    sent: Moment
    usable: int

    def remaining(self, now: Moment) -> int:
        """What is left at ``now``; zero when the holder must have stopped."""
        return max(self.usable - now.since(self.sent), 0)
