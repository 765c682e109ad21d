"""asyncio: the same names, and what cancelling leaves behind (nothing)."""

from __future__ import annotations

import asyncio
import time
import unittest

import tenure
from support import NodeCase, until
from tenure import aio


class AioTests(NodeCase, unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.client = aio.Client(self.node.endpoint, holder="aio")
        self.addAsyncCleanup(self.client.close, 2.0)

    async def queued(self, resource: str, count: int) -> None:
        for _ in range(1000):
            found = await self.client.lease(resource)
            if found is not None and found["waiting"] == count:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{count} were never queued")

    async def test_a_lease_is_acquired_used_and_given_back(self) -> None:
        async with self.client.session(ttl=5) as session:
            async with session.acquire(self.resource(), wait=5) as lease:
                with lease.permit(max_op=0.1) as permit:
                    await session.registers.put(self.resource("k"), "v", permit=permit)
                self.assertEqual(lease.status().state.kind, "held")
            found = await self.client.lease(self.resource())
            assert found is not None
            self.assertEqual(found["state"], "free")
            register = await self.client.registers.get(self.resource("k"))
            assert register is not None
            self.assertEqual(register.text, "v")

    async def test_a_cancelled_wait_leaves_the_queue(self) -> None:
        session = await self.client.session(ttl=5)
        other = await self.client.session(ttl=5)
        held = await session.acquire(self.resource())
        waiting = asyncio.ensure_future(asyncio.wait_for(other.acquire(self.resource(), wait=True), 30))
        await self.queued(self.resource(), 1)
        waiting.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await waiting
        await self.queued(self.resource(), 0)
        self.assertEqual(held.status().state.kind, "held")

    async def test_a_blocked_event_loop_loses_no_lease(self) -> None:
        async with self.client.session(ttl=2) as session, session.acquire(self.resource()) as lease:
            time.sleep(5)  # the loop does nothing for more than two TTLs
            until("it is held", lambda: lease.status().state.kind == "held")
            lease.permit().done()

    async def test_a_notice_reaches_the_loop(self) -> None:
        async with self.client.session(ttl=2) as session:
            lease = await session.acquire(self.resource())
            seen: asyncio.Queue[str | None] = asyncio.Queue()
            lease.on_change(lambda status: seen.put_nowait(status.notice))
            await self.client.revoke(self.resource())
            self.assertEqual(await asyncio.wait_for(seen.get(), 10), "revoked")
            await asyncio.wait_for(lease.stopped(), 10)

    async def test_election(self) -> None:
        name = self.resource("leader")
        first = await self.client.election(name, ttl=3, value="here", holder="a").campaign()
        observed = self.client.election(name).observe()
        leader = await observed.__anext__()
        assert leader is not None
        self.assertEqual((leader.holder, leader.value), ("a", b"here"))
        led: asyncio.Queue[int] = asyncio.Queue()

        async def lead(leadership: aio.Leadership) -> None:
            led.put_nowait(leadership.token)
            await asyncio.sleep(60)

        running = asyncio.ensure_future(self.client.election(name, ttl=3, holder="b").run(lead))
        await self.queued(name, 1)
        await first.resign()
        self.assertGreater(await asyncio.wait_for(led.get(), 10), first.token)
        # Revoked at once: leading is cancelled, and the candidate is elected anew.
        await self.client.revoke(name, now=True)
        await asyncio.wait_for(led.get(), 10)
        running.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await running
        await observed.aclose()  # type: ignore[attr-defined]

    async def test_watch(self) -> None:
        events = self.client.watch(self.resource(""), from_revision=1)
        async with self.client.session(ttl=5) as session, session.acquire(self.resource()):
            pass
        kinds = [(await events.__anext__()).kind, (await events.__anext__()).kind]
        self.assertEqual(kinds, ["granted", "ended"])
        await events.aclose()  # type: ignore[attr-defined]

    async def test_singleton(self) -> None:
        @self.client.singleton(self.resource(), ttl=5)
        async def report(lease: aio.Lease) -> int:
            self.assertIsNone(await report())
            return lease.token

        self.assertIsNotNone(await report())

    async def test_held(self) -> None:
        async with self.client.session(ttl=5) as a, self.client.session(ttl=5) as b, a.acquire(self.resource()):
            with self.assertRaises(tenure.Held):
                await b.acquire(self.resource())


if __name__ == "__main__":
    unittest.main()
