"""The fence in PostgreSQL, with the driver that the application already uses (psycopg; psycopg2 works too).

The rule is SQL (``tenure_fence.enter`` and so on), installed once by `install`. A transaction enters the
fence first; a stale token is refused there, in the same transaction as the work. This module holds no rule
of its own: it runs these functions, passes on what is left of the lease as the server's own timers, and
says what became of a commit.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ._errors import TenureError, Unanswered
from ._lease import FenceUnavailable, OutOfTime, Permit, Stale, Takeover

_TIMEOUT = 10.0
#: Waited too long, was a deadlock's victim, lost a race of snapshots: nothing was applied, try again.
_TRY_AGAIN = frozenset({"55P03", "57014", "40P01", "40001", "25P03", "25P04"})


class CommitUnknown(Unanswered):
    """The commit may have been done. Read back, or compare `Transaction.seq` with the fence's mark."""


@dataclass(frozen=True)
class Barrier:
    """What a fence found on taking over: the predecessor's token, and where it stopped."""

    predecessor: int | None
    seq: int
    cursor: bytes | None


def schema_sql() -> str:
    """The schema of the fence, for people who keep their migrations elsewhere. Applying it twice is harmless."""
    return resources.files("tenure").joinpath("fence.sql").read_text()


def install(conn: Any) -> None:
    """Creates the schema ``tenure_fence`` in the database of this connection."""
    with conn.cursor() as cursor:
        cursor.execute(schema_sql())
    if not conn.autocommit:
        conn.commit()


def fence(conn: Any, timeout: float = _TIMEOUT) -> PostgresFence:
    """A fence over this connection, for ``acquire(fences={"postgres:ledger": postgres.fence(conn)})``."""
    return PostgresFence(conn, timeout)


class PostgresFence:
    """Installs tokens. Give it a connection on which nothing else is going on meanwhile."""

    def __init__(self, conn: Any, timeout: float = _TIMEOUT) -> None:
        self._conn = conn
        self._timeout = timeout

    def barrier(self, takeover: Takeover) -> Barrier:
        """Installs the token; waits for older transactions inside no longer than the lease lasts."""
        try:
            with self._conn.cursor() as cursor:
                cursor.execute(*_barrier(takeover, self._timeout))
                row = cursor.fetchone()
            if not self._conn.autocommit:
                self._conn.commit()
            return _found(row)
        except Exception as error:
            _roll_back(self._conn)
            raise _not_applied(error) from error


class AsyncPostgresFence:
    """The same over an asynchronous connection, for `tenure.aio`."""

    def __init__(self, conn: Any, timeout: float = _TIMEOUT) -> None:
        self._conn = conn
        self._timeout = timeout

    async def barrier(self, takeover: Takeover) -> Barrier:
        """Installs the token."""
        try:
            async with self._conn.cursor() as cursor:
                await cursor.execute(*_barrier(takeover, self._timeout))
                row = await cursor.fetchone()
            if not self._conn.autocommit:
                await self._conn.commit()
            return _found(row)
        except Exception as error:
            with contextlib.suppress(Exception):
                await self._conn.rollback()
            raise _not_applied(error) from error


class Transaction:
    """A transaction that is inside the fence. What is executed on it is part of it."""

    def __init__(self, conn: Any, permit: Permit, seq: int | None, cursor: bytes | None) -> None:
        self.conn = conn
        self.permit = permit
        #: With ``serial``: this transaction's number, an idempotency key together with scope and token.
        self.seq = seq
        #: With ``serial``: where the last committed transaction left the cursor.
        self.position = cursor

    def execute(self, sql: str, parameters: Any = None) -> Any:
        """Executes a statement and returns its cursor."""
        cursor = self.conn.cursor()
        cursor.execute(sql, parameters)
        return cursor

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        """A cursor of the driver."""
        return self.conn.cursor(*arguments, **options)

    def advance(self, to: bytes | str) -> None:
        """Moves the cursor; seen by others when this transaction commits. Only with ``serial``."""
        position = to.encode() if isinstance(to, str) else to
        try:
            self.execute(
                "SELECT tenure_fence.advance(%s, %s, %s)", (self.permit.scope, self.permit.token, position)
            )
        except TenureError:
            raise
        except Exception as error:
            raise _not_applied(error) from error
        self.position = position


class AsyncTransaction(Transaction):
    """The same over an asynchronous connection."""

    async def execute(self, sql: str, parameters: Any = None) -> Any:
        """Executes a statement and returns its cursor."""
        cursor = self.conn.cursor()
        await cursor.execute(sql, parameters)
        return cursor

    async def advance(self, to: bytes | str) -> None:  # type: ignore[override]
        """Moves the cursor; seen by others when this transaction commits. Only with ``serial``."""
        position = to.encode() if isinstance(to, str) else to
        await self.execute("SELECT tenure_fence.advance(%s, %s, %s)", (self.permit.scope, self.permit.token, position))
        self.position = position


@contextlib.contextmanager
def transaction(conn: Any, permit: Permit, *, serial: bool = False) -> Iterator[Transaction]:
    """A guarded transaction: begins with ``enter``, commits if the lease still has time, else rolls back.

    With ``serial`` the holder's transactions follow one another and may move the cursor. Raises `Stale` if
    a newer token has been seen, `OutOfTime` if the lease has no time left, `CommitUnknown` if the answer to
    the commit was lost.
    """
    _check_idle(conn)
    try:
        if conn.autocommit:
            with conn.cursor() as cursor:
                cursor.execute("BEGIN")
        with conn.cursor() as cursor:
            cursor.execute(*_enter(permit, serial))
            row = cursor.fetchone()
        inside = Transaction(conn, permit, *_position(row, serial))
    except TenureError:
        _roll_back(conn)
        raise
    except Exception as error:
        _roll_back(conn)
        raise _not_applied(error) from error
    try:
        yield inside
        permit.check()  # judged again before the commit; the server's timers and the token judge after it
    except BaseException as error:
        _roll_back(conn)
        stale = _stale(error)
        if stale is not None:
            raise stale from error
        raise
    try:
        with conn.cursor() as cursor:
            # After a statement that failed, even if its error was passed over, a COMMIT rolls back and calls
            # that a success. The statement before it then fails as well, and says so.
            cursor.execute("SELECT 1; COMMIT")
    except Exception as error:
        _roll_back(conn)
        raise _at_commit(error) from error


@contextlib.asynccontextmanager
async def async_transaction(conn: Any, permit: Permit, *, serial: bool = False) -> AsyncIterator[AsyncTransaction]:
    """The same over an asynchronous connection."""
    _check_idle(conn)
    try:
        if conn.autocommit:
            await conn.execute("BEGIN")
        async with conn.cursor() as cursor:
            await cursor.execute(*_enter(permit, serial))
            row = await cursor.fetchone()
        inside = AsyncTransaction(conn, permit, *_position(row, serial))
    except TenureError:
        await _roll_back_async(conn)
        raise
    except Exception as error:
        await _roll_back_async(conn)
        raise _not_applied(error) from error
    try:
        yield inside
        permit.check()
    except BaseException as error:
        await _roll_back_async(conn)
        stale = _stale(error)
        if stale is not None:
            raise stale from error
        raise
    try:
        async with conn.cursor() as cursor:
            await cursor.execute("SELECT 1; COMMIT")
    except Exception as error:
        await _roll_back_async(conn)
        raise _at_commit(error) from error


def mark(conn: Any, scope: str) -> tuple[int, int, bytes | None] | None:
    """What the fence remembers of a scope: token, seq and cursor."""
    with conn.cursor() as cursor:
        cursor.execute("SELECT token, seq, cursor FROM tenure_fence.marks WHERE scope = %s", (scope,))
        row = cursor.fetchone()
    if not conn.autocommit:
        conn.commit()
    return None if row is None else (int(row[0]), int(row[1]), None if row[2] is None else bytes(row[2]))


def _barrier(takeover: Takeover, timeout: float) -> tuple[str, Any]:
    # A little less than the caller waits, so that the server gives up first and says that nothing was done.
    budget = max(int(min(takeover.remaining, timeout) * 900), 1)
    sql = "SELECT predecessor, seq, cursor FROM tenure_fence.barrier(%s, %s, %s, %s)"
    return sql, (takeover.scope, takeover.token, takeover.holder, budget)


def _enter(permit: Permit, serial: bool) -> tuple[str, Any]:
    permit.check()
    arguments = (permit.scope, permit.token, max(permit.remaining_ns() // 1_000_000, 1))
    if serial:
        return "SELECT seq, cursor FROM tenure_fence.enter_serial(%s, %s, %s)", arguments
    return "SELECT tenure_fence.enter(%s, %s, %s)", arguments


def _found(row: Any) -> Barrier:
    return Barrier(
        None if row[0] is None else int(row[0]), int(row[1]), None if row[2] is None else bytes(row[2])
    )


def _position(row: Any, serial: bool) -> tuple[int | None, bytes | None]:
    return (int(row[0]), None if row[1] is None else bytes(row[1])) if serial else (None, None)


def _check_idle(conn: Any) -> None:
    status = getattr(getattr(conn, "info", None), "transaction_status", 0)
    if int(status) != 0:
        raise ValueError("the connection is inside a transaction; a guarded one must begin with the fence")


def _roll_back(conn: Any) -> None:
    with contextlib.suppress(Exception):
        conn.rollback()


async def _roll_back_async(conn: Any) -> None:
    with contextlib.suppress(Exception):
        await conn.rollback()


def _state(error: BaseException) -> str | None:
    found = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return found if isinstance(found, str) else None


def _stale(error: BaseException) -> Stale | None:
    if _state(error) != "TN001":
        return None
    detail = getattr(getattr(error, "diag", None), "message_detail", None)
    try:
        found = json.loads(detail or "")
        return Stale(str(found["scope"]), int(found["presented"]), int(found["seen"]))
    except (ValueError, KeyError, TypeError):
        return None


def _not_applied(error: Exception) -> Exception:
    """What an error before the commit says: nothing can have been applied."""
    if isinstance(error, TenureError):
        return error
    stale = _stale(error)
    if stale is not None:
        return stale
    code = _state(error)
    if code is None or code in _TRY_AGAIN or code[:2] in ("53", "57", "08"):
        return FenceUnavailable(f"the database could not do it now: {error}")
    return error


def _at_commit(error: Exception) -> Exception:
    """What an error at the commit says: a server that goes down has perhaps committed already."""
    code = _state(error)
    if code is None or code.startswith(("57P", "08")):
        return CommitUnknown(f"the commit may have been done: {error}", "unknown")
    return _not_applied(error)


__all__ = [
    "AsyncPostgresFence", "AsyncTransaction", "Barrier", "CommitUnknown", "OutOfTime", "PostgresFence", "Stale",
    "Transaction", "async_transaction", "fence", "install", "mark", "schema_sql", "transaction",
]  # fmt: skip
