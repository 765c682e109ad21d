"""The renewer: one daemon thread that keeps every session of a client alive.

It contains no lease rule. Each session's logic says when it wants to run and what it wants to send. The
renewer runs it in time, hands everything that is due over together, and never waits for the network.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

from ._clock import Clock
from ._driver import Send, SessionDriver
from ._timing import MS

#: Sessions are looked at in steps of this, so that those that are due together ride in one message.
_STEP_MAX = 50 * MS
_STEP_MIN = 1 * MS
_STEPS_PER_DETECT = 16


class Renewer:
    """See the module."""

    def __init__(self, clock: Clock, send: Callable[[list[Send]], None]) -> None:
        self._clock = clock
        self._send = send
        self._origin = clock.now()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._nudged: set[SessionDriver] = set()
        self._wakes: list[tuple[int, int, SessionDriver]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def nudge(self, driver: SessionDriver) -> None:
        """Something about a session has changed: look at it now."""
        with self._lock:
            if self._stopped:
                return
            self._nudged.add(driver)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tenure-renewer", daemon=True)
                self._thread.start()
            self._changed.notify()

    def stop(self) -> None:
        """Ends the thread. What was held ends with its TTL."""
        with self._lock:
            self._stopped = True
            self._changed.notify()

    def forked(self) -> None:
        """Called in a fork of the process, which has none of its threads."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._stopped = True

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._nudged and not self._stopped:
                    if self._wakes:
                        left = self._wakes[0][0] - self._clock.now().since(self._origin)
                        if left <= 0:
                            break
                        self._clock.wait(self._changed, left)
                    else:
                        self._changed.wait()
                if self._stopped:
                    return
                nudged, self._nudged = self._nudged, set()
            self._turn(nudged)

    def _turn(self, nudged: set[SessionDriver]) -> None:
        now = self._clock.now()
        passed = now.since(self._origin)
        due = nudged
        while self._wakes and self._wakes[0][0] <= passed:
            wake, _, driver = heapq.heappop(self._wakes)
            # An entry that was overtaken by a later look at the session says nothing any more.
            if wake == driver.due:
                due.add(driver)
        sends: list[Send] = []
        for driver in due:
            # Read for each session anew: the deadline counts from this reading, and looking takes time.
            now = self._clock.now()
            send, wake_at = driver.next_transmission(now)
            if send is not None:
                sends.append(send)
            if wake_at is None:
                driver.due = -1
                continue
            step = min(max(driver.options.timing.detect // _STEPS_PER_DETECT, _STEP_MIN), _STEP_MAX)
            passed = now.since(self._origin)
            at = max(-(-wake_at.since(self._origin) // step) * step, passed + _STEP_MIN)
            driver.due = at
            heapq.heappush(self._wakes, (at, next(self._order), driver))
        if sends:
            self._send(sends)
