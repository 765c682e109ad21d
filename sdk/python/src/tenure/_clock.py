"""The clocks. Everything that judges a deadline reads them here, both at once."""

from __future__ import annotations

import sys
import threading
import time
from typing import Protocol

from ._timing import Moment


class Clock(Protocol):
    """What reads the time and waits for it."""

    def now(self) -> Moment:
        """Both clocks, read one right after the other."""

    def wait(self, condition: threading.Condition, nanos: int | None) -> None:
        """Waits on a condition that the caller has locked: until notified, or for so long at most."""


if sys.platform == "linux":
    _BOOT = time.CLOCK_BOOTTIME
    _RAW = time.CLOCK_MONOTONIC_RAW
else:  # pragma: no cover - the other systems have one clock that counts
    _BOOT = getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)
    _RAW = time.CLOCK_MONOTONIC


class SystemClock:
    """CLOCK_BOOTTIME, which counts suspended time, and CLOCK_MONOTONIC_RAW, which nobody slews."""

    def now(self) -> Moment:
        return Moment(time.clock_gettime_ns(_BOOT), time.clock_gettime_ns(_RAW))

    def wait(self, condition: threading.Condition, nanos: int | None) -> None:
        condition.wait(None if nanos is None else nanos / 1e9)
