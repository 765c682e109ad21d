"""Tenure: leases that a paused process cannot outlive, for Python.

```python
client = tenure.Client.from_env()
with client.session(ttl=10) as session, session.acquire("settlement/cron", wait=60) as lease:
    with lease.permit(max_op=0.2) as permit:
        write(token=permit.token)
```

The same names with ``async`` are in `tenure.aio`, the fence for PostgreSQL in `tenure.postgres`, a clock
that tests control in `tenure.testing`.
"""

from ._client import Client
from ._clock import Clock, SystemClock
from ._credential import Credential, read_credential
from ._driver import LeaseStatus
from ._election import Election, Leader, Leadership
from ._errors import (
    Effect,
    Forked,
    Held,
    LeaseEnded,
    PermitRefused,
    Refused,
    SessionEnded,
    StaleToken,
    StillOut,
    TenureError,
    TooOld,
    Unanswered,
    Unreachable,
)
from ._holder import Jeopardy, LeaseEnd, LeaseState, NoPermit, Suspect
from ._lease import (
    FOREVER,
    Fence,
    FenceUnavailable,
    Lease,
    OutOfTime,
    Permit,
    ReadPermit,
    Session,
    Stale,
    StopSignal,
    Takeover,
)
from ._registers import Register, Registers
from ._timing import Bounds, BrokenTiming, Moment, Timing
from ._watch import Event, Watch

__version__ = "0.1.0"

__all__ = [
    "FOREVER", "Bounds", "BrokenTiming", "Client", "Clock", "Credential", "Effect", "Election", "Event", "Fence",
    "FenceUnavailable", "Forked", "Held", "Jeopardy", "Leader", "Leadership", "Lease", "LeaseEnd", "LeaseEnded",
    "LeaseState", "LeaseStatus", "Moment", "NoPermit", "OutOfTime", "Permit", "PermitRefused", "ReadPermit", "Refused",
    "Register", "Registers", "Session", "SessionEnded", "Stale", "StaleToken", "StillOut", "StopSignal", "Suspect",
    "SystemClock", "Takeover", "TenureError", "Timing", "TooOld", "Unanswered", "Unreachable", "Watch",
    "read_credential",
]  # fmt: skip
