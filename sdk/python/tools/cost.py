"""Measures what a permit costs, and how many sessions one process keeps alive.

    TENURE_ENDPOINTS=… python3 tools/cost.py permit
    TENURE_ENDPOINTS=… python3 tools/cost.py sessions [COUNT] [SECONDS]
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import tenure  # noqa: E402


def permit() -> None:
    """The least of many short stretches: what it costs when nothing interferes."""
    client = tenure.Client.from_env()
    with client.session(ttl=60) as session, session.acquire("cost/permit") as lease:
        best = float("inf")
        for _ in range(200):
            begun = time.perf_counter()
            for _ in range(100):
                with lease.permit(0.1):
                    pass
            best = min(best, (time.perf_counter() - begun) / 100)
    client.close()
    print(f"permit: {best * 1e6:.1f} us to take and give back")


def sessions(count: int, seconds: float) -> None:
    """Opens so many sessions with a TTL of 10 s and keeps them alive for a while."""
    client = tenure.Client.from_env(follow_members=False)
    with ThreadPoolExecutor(32) as pool:
        opened = list(pool.map(lambda _: client.session(10, events=False, open_within=120), range(count)))
    calls = [0]
    client._core.transport.disturb = lambda *_: calls.__setitem__(0, calls[0] + 1)
    begun, used = time.monotonic(), time.process_time()
    before = sum(session._driver.logic._answered for session in opened)
    least = float("inf")
    while time.monotonic() - begun < seconds:
        time.sleep(0.5)
        least = min(least, min(session.remaining() for session in opened))
    took = time.monotonic() - begun
    renewed = sum(session._driver.logic._answered for session in opened) - before
    alive = sum(session.is_open for session in opened)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"sessions: {alive} of {count} alive after {took:.0f} s; {renewed / took:.0f} renewals in "
        f"{calls[0] / took:.1f} calls a second; {(time.process_time() - used) / took:.0%} of a core; "
        f"{memory:.0f} MiB; {threading.active_count()} threads; never less than {least:.1f} s left"
    )
    os._exit(0 if alive == count else 1)  # closing that many one by one would take as long as opening


if __name__ == "__main__":
    if sys.argv[1:2] == ["permit"]:
        permit()
    else:
        sessions(*(cast(word) for cast, word in zip((int, float), sys.argv[2:] or ("10000", "30"))))
