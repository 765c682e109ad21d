"""The same names for asyncio. One daemon thread renews here too, so a blocked event loop loses no lease.

`Lease.permit` is not asynchronous: it asks this process alone, and what it answers is true at that moment.
Everything that may wait for the network is a coroutine, and cancelling it leaves nothing behind: an acquire
that is cancelled leaves the queue, or gives back what it was granted.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
import signal as _signal
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from . import _client, _election, _lease
from ._driver import Acquiring, LeaseStatus
from ._election import Leader
from ._errors import Held, StillOut, TenureError, Unanswered
from ._holder import LeaseEnd
from ._lease import FenceUnavailable, Permit, ReadPermit, Stale, Takeover, acquire_body, waiting
from ._registers import Register
from ._watch import Event

log = logging.getLogger("tenure")
T = TypeVar("T")
_SENTINEL: Any = object()


class Fence(Protocol):
    """A storage that checks tokens, asked without blocking."""

    async def barrier(self, takeover: Takeover) -> Any:
        """Installs the token. Raises `tenure.Stale` if it has seen a newer one."""


class Managed(Generic[T]):
    """What `Client.session` and `Session.acquire` return: await it, or use it with ``async with``."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._begin = begin
        self._found: Any = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._begin().__await__()

    async def __aenter__(self) -> T:
        self._found = await self._begin()
        found: T = await self._found.__aenter__()
        return found

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._found.__aexit__(kind, error, trace)


class Client:
    """A client of one cluster, for asyncio; see `tenure.Client`."""

    def __init__(self, endpoints: str | list[str] | None = None, **options: Any) -> None:
        self.sync = _client.Client(endpoints, **options)

    @staticmethod
    def from_env(**options: Any) -> Client:
        """A client of the cluster that ``TENURE_ENDPOINTS`` and ``TENURE_CREDENTIAL`` name."""
        client = Client.__new__(Client)
        client.sync = _client.Client.from_env(**options)
        return client

    async def _run(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        return await asyncio.wrap_future(self.sync._core.pool.submit(functools.partial(call, *arguments, **named)))

    def session(self, ttl: float = 10.0, **options: Any) -> Managed[Session]:
        """Opens a session; see `tenure.Client.session`."""

        async def begin() -> Session:
            opening = self.sync._core.pool.submit(functools.partial(self.sync.session, ttl, **options))
            try:
                return Session(self, await asyncio.shield(asyncio.wrap_future(opening)))
            except asyncio.CancelledError:
                # Whatever is opened after all is closed.
                opening.add_done_callback(lambda done: None if done.exception() else done.result().close())
                raise

        return Managed(begin)

    @property
    def registers(self) -> Registers:
        """Small values in the cluster."""
        return Registers(self, self.sync.registers)

    def election(self, name: str, **options: Any) -> Election:
        """An election under this name."""
        return Election(self, self.sync.election(name, **options))

    async def lease(self, resource: str) -> dict[str, Any] | None:
        """Who holds a resource, linearizably."""
        return await self._run(self.sync.lease, resource)

    async def revoke(self, resource: str, **options: Any) -> None:
        """Ends a lease by notice; with ``now`` at once."""
        await self._run(functools.partial(self.sync.revoke, resource, **options))

    async def watch(self, prefix: str = "", from_revision: int | None = None) -> AsyncIterator[Event]:
        """Events of all resources and registers whose name begins so."""
        watch = self.sync.watch(prefix, from_revision)
        async with contextlib.aclosing(_iterate(self, iter(watch), watch.close)) as events:
            async for event in events:
                yield event

    def singleton(
        self, resource: str, *, ttl: float = 10.0, wait: float | bool | None = None, rest: float | None = None,
        **options: Any,
    ) -> Callable[[Callable[..., Awaitable[T]]], Callable[..., Awaitable[T | None]]]:  # fmt: skip
        """A decorator for a coroutine function; see `tenure.Client.singleton`."""

        def decorate(function: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T | None]]:
            @functools.wraps(function)
            async def run(*arguments: Any, **named: Any) -> T | None:
                async with self.session(ttl, **options) as session:
                    try:
                        lease = await session.acquire(resource, wait=wait)
                    except Held as held:
                        log.info("%s is skipped: %s", resource, held)
                        return None
                    async with lease:
                        result = await function(lease, *arguments, **named)
                        if rest is not None:
                            await lease.release(rest=rest)
                        return result

            return run

        return decorate

    async def drain(self, within: float = 20.0) -> bool:
        """Gives everything back; false if work was still going on after so many seconds."""
        return await self._run(self.sync.drain, within)

    def drain_on(self, signum: int = _signal.SIGTERM, within: float = 20.0) -> None:
        """On this signal: drains, then does what the signal would have done without this."""
        self.sync.drain_on(signum, within)

    async def close(self, within: float = 20.0) -> None:
        """Drains, then ends the client's threads and connections."""
        await self._run(self.sync.drain, within)
        self.sync._core.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


class Session:
    """The unit of liveness, for asyncio; see `tenure.Session`."""

    def __init__(self, client: Client, sync: _lease.Session) -> None:
        self.client = client
        self.sync = sync

    @property
    def number(self) -> int:
        """The public number."""
        return self.sync.number

    @property
    def is_open(self) -> bool:
        """Whether it lives, as far as is known."""
        return self.sync.is_open

    def remaining(self) -> float:
        """Seconds left of the session's local deadline."""
        return self.sync.remaining()

    def progressed(self) -> None:
        """The worker is getting on."""
        self.sync.progressed()

    @property
    def registers(self) -> Registers:
        """Small values in the cluster, written in the name of this session."""
        return Registers(self.client, self.sync.registers)

    def acquire(
        self,
        resource: str,
        *,
        wait: float | bool | None = None,
        fences: Mapping[str, Fence] | Sequence[str] = (),
        timeout: float = 10.0,
        **options: Any,
    ) -> Managed[Lease]:
        """Acquires a lease; see `tenure.Session.acquire`. Cancelled, it leaves the queue."""

        async def begin() -> Lease:
            body = acquire_body(fences=fences, **options)
            asked = self.sync._driver.acquire([resource], body, list(fences), waiting(wait), timeout)
            lease = Lease(self, _lease.Lease(self.sync, (await _granted(asked))[0]))
            if isinstance(fences, Mapping) and lease.sync._grant.writes:
                await lease.take_over(fences)
            return lease

        return Managed(begin)

    async def acquire_all(
        self, resources: Sequence[str], *, wait: float | bool | None = None, timeout: float = 10.0, **options: Any
    ) -> list[Lease]:
        """Acquires several resources, all or none."""
        asked = self.sync._driver.acquire(list(resources), acquire_body(**options), (), waiting(wait), timeout)
        return [Lease(self, _lease.Lease(self.sync, grant)) for grant in await _granted(asked)]

    async def close(self, within: float | None = None) -> None:
        """Gives all leases back and ends the session, once no permit is out."""
        await self.client._run(self.sync.close, within)

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


async def _granted(asked: Acquiring) -> list[Any]:
    try:
        return await asyncio.shield(asyncio.wrap_future(asked.future))
    except asyncio.CancelledError:
        asked.call_off()
        asked.future.add_done_callback(lambda done: done.exception())
        raise


class Lease:
    """The right to act on a resource, for asyncio; see `tenure.Lease`."""

    def __init__(self, session: Session, sync: _lease.Lease) -> None:
        self.session = session
        self.sync = sync
        self.token = sync.token
        self.resource = sync.resource
        self.scope = sync.scope
        self.generation = sync.generation
        self.slot = sync.slot
        self.waited = sync.waited

    def permit(self, max_op: float = 0.0) -> Permit:
        """A permit for work of up to ``max_op`` seconds. Judged now; it waits for nothing."""
        return self.sync.permit(max_op)

    def read_permit(self, max_op: float = 0.0) -> ReadPermit:
        """A permit to read for up to ``max_op`` seconds."""
        return self.sync.read_permit(max_op)

    def status(self) -> LeaseStatus:
        """What the lease is at this moment."""
        return self.sync.status()

    def remaining(self) -> float:
        """Seconds left at this moment before the work must have stopped."""
        return self.sync.remaining()

    def on_change(self, hook: Callable[[LeaseStatus], object]) -> None:
        """Calls ``hook`` with every new status, in this event loop."""
        loop = asyncio.get_running_loop()

        def call(status: LeaseStatus) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(hook, status)

        self.sync.on_change(call)

    async def stopped(self) -> None:
        """Returns when work under this lease has to stop: soft deadline, notice, pause, end."""
        signal = self.sync.stop_signal()
        while not await self.session.client._run(signal.wait, 0.5):
            pass

    async def release(self, rest: float | None = None) -> LeaseEnd:
        """Gives the lease back."""
        return await self.session.client._run(self.sync.release, rest)

    async def transfer(self, to: int) -> None:
        """Hands the lease to the session with this public number."""
        await self.session.client._run(self.sync.transfer, to)

    async def drain(self, within: float) -> LeaseEnd:
        """Closes the intake, waits for the permits that are out, and gives back."""
        return await self.session.client._run(self.sync.drain, within)

    def unarmed(self) -> list[str]:
        """The fences that have not answered the barrier."""
        return self.sync.unarmed()

    async def take_over(self, fences: Mapping[str, Fence]) -> dict[str, Any]:
        """Installs the token in these fences before anything is read; returns what each of them found."""
        found: dict[str, Any] = {}
        for name, fence in fences.items():
            delay = 0.02
            while True:
                takeover = self.sync.takeover()
                try:
                    found[name] = await fence.barrier(takeover)
                    break
                except Stale as stale:
                    self.sync._refused_by_fence(stale.seen)
                    self.sync.report_refused(name, stale)
                    raise
                except (FenceUnavailable, Unanswered):
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, 0.5)
            self.sync.armed(name)
        return found

    async def __aenter__(self) -> Lease:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.sync._over:
            return
        try:
            await self.release()
        except (StillOut, Unanswered):
            self.sync._over = True
            self.sync._driver.drop(self.token)


class Registers:
    """Registers, for asyncio; see `tenure.Registers`."""

    def __init__(self, client: Client, sync: Any) -> None:
        self._client = client
        self._sync = sync

    async def get(self, key: str) -> Register | None:
        """Reads one register, linearizably."""
        found: Register | None = await self._client._run(self._sync.get, key)
        return found

    async def put(self, key: str, value: bytes | str, **options: Any) -> Register:
        """Writes one register."""
        found: Register = await self._client._run(functools.partial(self._sync.put, key, value, **options))
        return found

    async def put_all(self, values: Mapping[str, bytes | str], *, permit: Permit | None = None) -> int:
        """Writes several registers in one step, all or none."""
        found: int = await self._client._run(functools.partial(self._sync.put_all, values, permit=permit))
        return found

    async def delete(self, key: str, **options: Any) -> None:
        """Removes one register."""
        await self._client._run(functools.partial(self._sync.delete, key, **options))

    async def list(self, prefix: str = "") -> Any:
        """All registers whose key begins so."""
        return await self._client._run(self._sync.list, prefix)


class Leadership:
    """The lease of a leader, for asyncio."""

    def __init__(self, session: Session, lease: Lease) -> None:
        self.session = session
        self.lease = lease
        self.permit = lease.permit
        self.status = lease.status
        self.token = lease.token

    async def publish(self, value: bytes | str) -> Register:
        """Publishes where the leader can be reached."""
        with self.lease.permit() as permit:
            key = _election.value_key(self.lease.resource)
            return await self.session.registers.put(key, value, permit=permit, ephemeral=True)

    async def resign(self) -> None:
        """Gives the leadership back, once no permit is out."""
        try:
            await self.lease.release()
        finally:
            await self.session.close()


class Election:
    """An election under one name, for asyncio; see `tenure.Election`."""

    def __init__(self, client: Client, sync: _election.Election) -> None:
        self.client = client
        self.sync = sync

    async def campaign(
        self, *, wait: float | bool = True, warm_up: Callable[[], Awaitable[object]] | None = None
    ) -> Leadership:
        """Waits in the queue once and returns when elected and warmed up. Cancelled, it leaves the queue."""
        session = await self.client.session(**self.sync._session_options)
        warming = asyncio.ensure_future(warm_up()) if warm_up is not None else None
        try:
            lease = await session.acquire(self.sync.name, wait=wait, priority=self.sync.priority)
            if warming is not None:
                await warming
            leadership = Leadership(session, lease)
            if self.sync.value is not None:
                await leadership.publish(self.sync.value)
            return leadership
        except BaseException:
            if warming is not None:
                warming.cancel()
            self.client.sync._core.pool.submit(session.sync.close)
            raise

    async def run(
        self,
        lead: Callable[[Leadership], Awaitable[object]],
        *,
        prepare: Callable[[], Awaitable[object]] | None = None,
        warm_up: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Campaigns, leads, and campaigns again after any loss, until it is cancelled.

        ``lead`` is cancelled at the deadline and when the lease ends; returning is resigning.
        """
        delay = 0.05
        while True:
            try:
                if prepare is not None:
                    await prepare()
                leadership = await self.campaign(warm_up=warm_up)
                delay = 0.05
                leading = asyncio.ensure_future(_as_coroutine(lead(leadership)))
                over = asyncio.ensure_future(self.client._run(leadership.lease.sync.wait_ended))
                try:
                    await asyncio.wait({leading, over}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not leading.done():
                        leading.cancel()
                        with contextlib.suppress(asyncio.CancelledError, Exception):
                            await leading
                    with contextlib.suppress(TenureError):
                        await leadership.resign()
                    over.cancel()
                leading.result() if not leading.cancelled() else None
            except TenureError as error:
                log.info("the election %s goes on: %s", self.sync.name, error)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, 2.0)

    async def leader(self) -> Leader | None:
        """Who leads now, linearizably."""
        return await self.client._run(self.sync.leader)

    async def observe(self) -> AsyncIterator[Leader | None]:
        """Who leads, now and whenever that changes; ``None`` while nobody does."""
        import threading

        until = threading.Event()
        observed = self.sync.observe(until)
        async with contextlib.aclosing(_iterate(self.client, observed, until.set)) as leaders:
            async for leader in leaders:
                yield leader


async def _as_coroutine(awaitable: Awaitable[object]) -> object:
    return await awaitable


async def _iterate(client: Client, found: Iterator[T], close: Callable[[], None]) -> AsyncGenerator[T, None]:
    try:
        while True:
            value = await client._run(next, found, _SENTINEL)
            if value is _SENTINEL:
                return
            yield value
    finally:
        close()


__all__ = ["Client", "Election", "Fence", "Leadership", "Lease", "Managed", "Registers", "Session"]
