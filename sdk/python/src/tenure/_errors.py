"""What can come of a call besides its answer, and what the caller may believe then.

Every error has ``effect``, so that nobody has to read a text: ``not_applied``, ``applied`` or ``unknown``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ._holder import LeaseEnd, NoPermit

Effect = Literal["not_applied", "applied", "unknown"]

#: The store may answer otherwise in a moment, so that the client asks again by itself.
PASSING = frozenset({"no_leader", "overloaded", "shutting_down", "restoring"})


class TenureError(Exception):
    """Anything that this package raises."""

    #: What the call has done.
    effect: Effect = "not_applied"

    def __init__(self, message: str, effect: Effect = "not_applied") -> None:
        super().__init__(message)
        self.effect = effect


class Refused(TenureError):
    """The store said no. ``code`` is a stable word to act on, ``fields`` what else it said."""

    def __init__(
        self,
        code: str,
        message: str,
        hint: str = "",
        effect: Effect = "not_applied",
        status: int = 0,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{message}; {hint}" if hint else message, effect)
        self.code = code
        self.hint = hint
        self.status = status
        self.fields: Mapping[str, Any] = fields or {}

    @property
    def passes(self) -> bool:
        """Whether asking again in a moment may be answered otherwise."""
        return self.code in PASSING and self.effect == "not_applied"


class Held(Refused):
    """Somebody else holds the resource, or is queued before us, or it rests (lock-delay)."""


class SessionEnded(Refused):
    """The session has ended: stop."""


class StaleToken(Refused):
    """A newer token was granted: stop writing."""


class Unreachable(TenureError):
    """No endpoint could be reached, so nothing was sent."""


class Unanswered(TenureError):
    """The call was sent and no answer came. ``effect`` is ``not_applied`` for what was never sent, else ``unknown``."""


class PermitRefused(TenureError):
    """No permit is given now. ``reason`` says why, without its text being read."""

    def __init__(self, reason: NoPermit) -> None:
        super().__init__(str(reason))
        self.reason = reason


class LeaseEnded(TenureError):
    """The lease ended otherwise before it could be given back; ``end`` says how."""

    def __init__(self, end: LeaseEnd, effect: Effect = "not_applied") -> None:
        super().__init__(f"the lease has ended: {end}", effect)
        self.end = end


class StillOut(TenureError):
    """Permits were still out when the time to drain was up; the lease is still held."""

    def __init__(self, out: int) -> None:
        super().__init__(f"{out} permits were still out when the time to drain was up")
        self.out = out


class TooOld(Refused):
    """The events from that revision on are no longer remembered; ``revision`` is where to go on."""

    @property
    def revision(self) -> int:
        """The first revision that is still there."""
        return int(self.fields.get("revision", 0))


class Forked(TenureError):
    """This process is a fork of the one that made the client. The child holds nothing: make a new client."""


_CLASSES: dict[str, type[Refused]] = {
    "held": Held,
    "delayed": Held,
    "unknown_session": SessionEnded,
    "stale_token": StaleToken,
    "lease_ended": StaleToken,
    "too_old": TooOld,
}


def refused(status: int, body: Any) -> Refused:
    """The refusal in an answer; one that is not the store's own is called ``internal``."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("code"), str):
        # Not the store's own word: a proxy's, say. What became of the call is not known.
        effect: Effect = "not_applied" if status in (400, 401, 403, 404, 405, 413) else "unknown"
        return Refused("internal", f"an answer with status {status} that is not the store's", effect=effect, status=status)
    code = error["code"]
    found: Effect = "not_applied"
    if error.get("effect") == "unknown":
        found = "unknown"
    elif error.get("effect") == "applied":
        found = "applied"
    known = {"code", "message", "hint", "effect"}
    fields = {key: value for key, value in error.items() if key not in known}
    cls = _CLASSES.get(code, Refused)
    return cls(code, str(error.get("message", code)), str(error.get("hint", "")), found, status, fields)
