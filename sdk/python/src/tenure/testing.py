"""A test kit: a clock that the test moves, a process that stands still, a network that loses answers.

```python
clock = TestClock()
client = tenure.Client(endpoints, clock=clock)
...
clock.jump(30)                      # as if the process had been stopped, or the machine suspended, for 30 s
with pytest.raises(tenure.PermitRefused):
    lease.permit()
```
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from ._client import Client
from ._clock import SystemClock
from ._http import Endpoint
from ._timing import Moment


class TestClock:
    """The system's clocks, moved ahead by the test. What jumps looks to the client like a process that stood still."""

    __test__ = False  # not a test case for pytest

    def __init__(self) -> None:
        self._system = SystemClock()
        self._boot = 0
        self._raw = 0

    def now(self) -> Moment:
        """Both clocks."""
        boot, raw = self._system.now()
        return Moment(boot + self._boot, raw + self._raw)

    def wait(self, condition: threading.Condition, nanos: int | None) -> None:
        """Waits in steps, so that a jump is noticed."""
        self._system.wait(condition, 20_000_000 if nanos is None else min(nanos, 20_000_000))

    def jump(self, seconds: float) -> None:
        """The process stood still for so long."""
        self._boot += int(seconds * 1e9)
        self._raw += int(seconds * 1e9)

    def suspend(self, seconds: float) -> None:
        """The machine was suspended for so long: only the boot-time clock counts that."""
        self._boot += int(seconds * 1e9)

    def slew(self, seconds: float) -> None:
        """The two clocks come apart by so much."""
        self._raw += int(seconds * 1e9)


class ManualClock:
    """Both clocks stand still until the test moves them. For tests that exchange nothing with a real node."""

    def __init__(self, boot: float = 1000.0, raw: float = 500.0) -> None:
        self._now = Moment(int(boot * 1e9), int(raw * 1e9))
        self._lock = threading.Lock()
        self._waiting: set[threading.Condition] = set()

    def now(self) -> Moment:
        """Both clocks."""
        return self._now

    def wait(self, condition: threading.Condition, nanos: int | None) -> None:
        """Waits until notified, or until the clock has been moved."""
        with self._lock:
            self._waiting.add(condition)
        condition.wait(1.0)
        with self._lock:
            self._waiting.discard(condition)

    def advance(self, seconds: float) -> None:
        """Time passes."""
        self._now = self._now.plus(int(seconds * 1e9))
        with self._lock:
            waiting = list(self._waiting)
        for condition in waiting:
            with condition:
                condition.notify_all()


@contextlib.contextmanager
def freeze(client: Client) -> Iterator[None]:
    """Nothing of the client runs: no renewal is sent, nothing that arrives is taken in. Real time passes."""
    renewer = client._core.renewer
    held = [driver.lock for driver in list(client._core.drivers)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(renewer._lock)
        for lock in held:
            stack.enter_context(lock)
        yield


@contextlib.contextmanager
def drop_answers(client: Client, what: str = "") -> Iterator[None]:
    """Requests whose path contains ``what`` are done, and their answers are lost."""
    with _disturbed(client, what, "drop"):
        yield


@contextlib.contextmanager
def cut_off(client: Client, what: str = "") -> Iterator[None]:
    """Requests whose path contains ``what`` reach nobody."""
    with _disturbed(client, what, "unreachable"):
        yield


@contextlib.contextmanager
def _disturbed(client: Client, what: str, how: str) -> Iterator[None]:
    transport = client._core.transport
    before = transport.disturb

    def disturb(method: str, path: str, endpoint: Endpoint) -> str | None:
        return how if what in path else None

    transport.disturb = disturb
    try:
        yield
    finally:
        transport.disturb = before


class LocalNode:
    """A real node with fresh data, for as long as the ``with`` block lasts. Needs the ``tenure`` program.

    It is looked for in the argument, in ``TENURE_BIN`` and in the search path.
    """

    def __init__(self, binary: str | None = None) -> None:
        found = binary or os.environ.get("TENURE_BIN") or shutil.which("tenure")
        if found is None:
            raise FileNotFoundError("the program tenure was not found; set TENURE_BIN to where it is")
        self._binary = found
        self._folder = Path(tempfile.mkdtemp(prefix="tenure-node-"))
        self.endpoint = f"127.0.0.1:{_free_port()}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> LocalNode:
        """Starts it, again on the same data, and waits until it serves."""
        log = open(self._folder / "log", "ab")
        arguments = [self._binary, "serve", "--listen", self.endpoint, "--data-dir", str(self._folder / "data")]
        self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        end = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(f"http://{self.endpoint}/readyz", timeout=1):
                    return self
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the node does not serve:\n{(self._folder / 'log').read_text()}")
            time.sleep(0.02)

    def kill(self) -> None:
        """``kill -9``; its data stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def __enter__(self) -> LocalNode:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
