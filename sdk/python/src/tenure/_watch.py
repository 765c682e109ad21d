"""Watching the cluster: events in order, each revision whole, also across a change of the node."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from ._errors import Refused, TenureError, TooOld
from ._http import Attempt

if TYPE_CHECKING:
    from ._core import Core

_SILENCE = 60.0
_AGAIN_FIRST, _AGAIN_MAX = 0.05, 2.0


@dataclass(frozen=True)
class Event:
    """Something that happened. ``data`` has what the kind says, as in the HTTP interface."""

    revision: int
    kind: str
    data: dict[str, Any]


class Watch:
    """An iterator of `Event`. Close it, or leave its ``with`` block, from any thread."""

    def __init__(self, core: Core, prefix: str, from_revision: int | None) -> None:
        self._core = core
        self._prefix = prefix
        self._from = from_revision
        self._attempt = Attempt()
        self._closed = threading.Event()
        #: Set once a node has accepted the watch: what happens from then on is seen.
        self.begun = threading.Event()

    def __iter__(self) -> Iterator[Event]:
        again = _AGAIN_FIRST
        endpoint = self._core.transport.endpoint()
        while not self._closed.is_set():
            self._core.check_process()
            query = {"prefix": self._prefix, **({} if self._from is None else {"from": str(self._from)})}
            pending: list[Event] = []
            try:
                for kind, number, data in self._core.transport.stream(
                    endpoint, f"/v1/watch?{urlencode(query)}", None, _SILENCE, self._attempt
                ):
                    self.begun.set()
                    again = _AGAIN_FIRST
                    if kind == "error":
                        raise _refused(data)
                    if isinstance(data, dict) and "revision" in data:
                        pending.append(Event(int(data["revision"]), kind, data))
                    if number:
                        # Only the last message of a revision has an id: a revision is told whole or again.
                        yield from pending
                        pending = []
                        self._from = int(number) + 1
            except TooOld:
                raise
            except Refused as error:
                if not error.passes and error.code != "overloaded":
                    raise
            except (TenureError, ValueError):
                pass
            if self._closed.wait(again):
                return
            again = min(again * 2, _AGAIN_MAX)
            endpoint = self._core.transport.endpoint(another=endpoint)

    def close(self) -> None:
        """Ends the iteration."""
        self._closed.set()
        self._attempt.hang_up()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refused(data: Any) -> Refused:
    from ._errors import refused

    return refused(410, data if isinstance(data, dict) and "error" in data else {"error": data})
