"""The fence in PostgreSQL, on a real one."""

from __future__ import annotations

import asyncio
import unittest
from pathlib import Path

import tenure
from support import ROOT, NodeCase, Postgres
from support import postgres as start_postgres
from tenure import aio, postgres


class PostgresTests(NodeCase):
    database: Postgres

    @classmethod
    def setUpClass(cls) -> None:
        cls.database = start_postgres()
        super().setUpClass()
        with cls.database.connect() as conn:
            postgres.install(conn)
            postgres.install(conn)  # twice is harmless
            conn.execute("CREATE TABLE entries (token bigint, value text)")

    @classmethod
    def tearDownClass(cls) -> None:
        super().tearDownClass()
        cls.database.stop()

    def setUp(self) -> None:
        self.client = tenure.Client(self.node.endpoint, holder="pg")
        self.addCleanup(self.client.close, 2.0)
        self.conn = self.database.connect()
        self.addCleanup(self.conn.close)

    def test_the_schema_is_that_of_the_rust_fence(self) -> None:
        rust = ROOT / "crates/fence/src/postgres/fence.sql"
        if not Path(rust).is_file():
            self.skipTest("not inside the repository")
        self.assertEqual(postgres.schema_sql(), rust.read_text())

    def test_a_guarded_transaction_and_a_stale_one(self) -> None:
        with self.client.session(ttl=5) as session:
            fence = postgres.fence(self.conn)
            old = session.acquire(self.resource(), fences={"postgres:x": fence})
            permit = old.permit()
            with postgres.transaction(self.conn, permit) as tx:
                tx.execute("INSERT INTO entries VALUES (%s, %s)", (permit.token, "a"))
            stale = (old.scope, old.token)
            permit.done()
            old.release()
            with session.acquire(self.resource(), fences={"postgres:x": fence}) as new:
                with self.assertRaises(tenure.Stale) as caught, new.permit() as permit:
                    late = tenure.Permit(_Posing(new, stale[1]), permit._taken, permit._remaining)  # type: ignore[arg-type]
                    with self.database.connect() as other, late, postgres.transaction(other, late) as tx:
                        tx.execute("INSERT INTO entries VALUES (%s, %s)", (stale[1], "late"))
                self.assertEqual((caught.exception.presented, caught.exception.seen), (stale[1], new.token))
                self.assertEqual(caught.exception.effect, "not_applied")
        rows = self.conn.execute("SELECT value FROM entries WHERE value = 'late'").fetchall()
        self.assertEqual(rows, [])

    def test_without_the_barrier_there_is_no_permit(self) -> None:
        with self.client.session(ttl=5) as session:
            lease = session.acquire(self.resource(), fences=["postgres:x"])
            with self.assertRaises(tenure.PermitRefused) as caught:
                lease.permit()
            self.assertEqual((caught.exception.reason.kind, caught.exception.reason.missing), ("not_armed", 1))
            self.assertEqual(lease.unarmed(), ["postgres:x"])
            found = lease.take_over({"postgres:x": postgres.fence(self.conn)})["postgres:x"]
            self.assertIsNone(found.predecessor)
            lease.permit().done()

    def test_a_fence_that_has_seen_a_newer_token_ends_the_lease(self) -> None:
        with self.client.session(ttl=5) as session:
            with self.conn.cursor() as cursor:
                cursor.execute("SELECT tenure_fence.barrier(%s, %s, %s)", (self.resource(), 10**9, "other"))
            self.conn.commit()
            with self.assertRaises(tenure.Stale):
                session.acquire(self.resource(), fences={"postgres:x": postgres.fence(self.conn)})

    def test_the_cursor_of_the_predecessor_is_found(self) -> None:
        with self.client.session(ttl=5) as session:
            fence = postgres.fence(self.conn)
            with session.acquire(self.resource(), fences={"postgres:x": fence}) as lease:
                with lease.permit() as permit, postgres.transaction(self.conn, permit, serial=True) as tx:
                    self.assertIsNone(tx.position)
                    tx.advance("row 1000")
                self.assertEqual((postgres.mark(self.conn, lease.scope) or (0, 0, b""))[2], b"row 1000")
            lease = session.acquire(self.resource(), fences=["postgres:x"])
            found = lease.take_over({"postgres:x": fence})["postgres:x"]
            self.assertEqual((found.cursor, found.seq > 0), (b"row 1000", True))

    def test_work_that_outlasts_the_lease_is_rolled_back(self) -> None:
        with self.client.session(ttl=5) as session, session.acquire(self.resource()) as lease:
            with self.assertRaises(tenure.OutOfTime), lease.permit() as permit:
                with postgres.transaction(self.conn, permit) as tx:
                    tx.execute("INSERT INTO entries VALUES (1, 'outlasted')")
                    permit._remaining = 0
        rows = self.conn.execute("SELECT 1 FROM entries WHERE value = 'outlasted'").fetchall()
        self.assertEqual(rows, [])

    def test_a_failed_statement_that_was_passed_over_does_not_look_committed(self) -> None:
        with self.client.session(ttl=5) as session, session.acquire(self.resource()) as lease, lease.permit() as permit:
            with self.assertRaises(Exception) as caught:
                with postgres.transaction(self.conn, permit) as tx:
                    tx.execute("INSERT INTO entries VALUES (1, 'half')")
                    try:
                        tx.execute("SELECT 1/0")
                    except Exception:
                        pass
            self.assertEqual(getattr(caught.exception, "sqlstate", None), "25P02")

    def test_a_connection_inside_a_transaction_is_refused(self) -> None:
        self.conn.execute("SELECT 1")
        with self.client.session(ttl=5) as session, session.acquire(self.resource()) as lease, lease.permit() as permit:
            with self.assertRaises(ValueError), postgres.transaction(self.conn, permit):
                pass

    def test_a_connection_that_commits_by_itself(self) -> None:
        with self.database.connect(autocommit=True) as conn:
            with self.client.session(ttl=5) as session:
                fences = {"postgres:x": postgres.fence(conn)}
                with session.acquire(self.resource(), fences=fences) as lease, lease.permit() as permit:
                    with self.assertRaises(RuntimeError), postgres.transaction(conn, permit) as tx:
                        tx.execute("INSERT INTO entries VALUES (1, 'undone')")
                        raise RuntimeError("undo it")
                    with postgres.transaction(conn, permit) as tx:
                        tx.execute("INSERT INTO entries VALUES (1, 'done')")
            rows = conn.execute("SELECT value FROM entries WHERE value IN ('done', 'undone')").fetchall()
            self.assertEqual(rows, [("done",)])

    def test_asyncio(self) -> None:
        async def run() -> bytes | None:
            import psycopg

            conn = await psycopg.AsyncConnection.connect(self.database.dsn)
            client = aio.Client(self.node.endpoint)
            fences = {"postgres:x": postgres.AsyncPostgresFence(conn)}
            async with client.session(ttl=5) as session, session.acquire(self.resource(), fences=fences) as lease:
                with lease.permit() as permit:
                    async with postgres.async_transaction(conn, permit, serial=True) as tx:
                        await tx.execute("INSERT INTO entries VALUES (%s, 'async')", (permit.token,))
                        await tx.advance("here")
            await client.close()
            await conn.close()
            return (postgres.mark(self.conn, self.resource()) or (0, 0, None))[2]

        self.assertEqual(asyncio.run(run()), b"here")


class _Posing:
    """A lease that presents an older token, as a paused holder does."""

    def __init__(self, lease: tenure.Lease, token: int) -> None:
        self._lease, self.token = lease, token
        self._driver, self.scope, self.resource = lease._driver, lease.scope, lease.resource


if __name__ == "__main__":
    unittest.main()
