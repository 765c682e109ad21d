"""Threads for what blocks: exchanges with nodes, waits in a queue, hooks of the application.

All of them are daemons: a process that ends does not wait for the network. What it held ends with its TTL.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_IDLE_SECONDS = 10.0


class Pool:
    """As many threads as there is work; idle ones end by themselves."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = 0

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        """Calls it on a thread; the future has what came of it."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call(*arguments))
            except BaseException as error:  # whoever waits is told
                future.set_exception(error)

        with self._lock:
            reuse = self._idle > 0
            if reuse:
                self._idle -= 1
        self._work.put(run)
        if not reuse:
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        return future

    def _serve(self) -> None:
        while True:
            try:
                call = self._work.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    # Work that was put in meanwhile counts on an idle thread: then it is this one.
                    if self._idle > 0 and self._work.empty():
                        self._idle -= 1
                        return
                continue
            call()
            del call  # what it refers to must not live until the next one
            with self._lock:
                self._idle += 1
