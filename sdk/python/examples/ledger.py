"""A worker that settles rows one after another, in one process at a time, and resumes where it stopped.

    TENURE_ENDPOINTS=… LEDGER=postgresql://… python3 ledger.py [ROWS]

The cursor is in the fence, moved in the same transaction as the work. Whoever takes over finds it there, so
nothing is done twice and nothing is left out, whenever a worker is stopped, killed or cut off.
"""

from __future__ import annotations

import os
import signal
import sys

import psycopg

import tenure
from tenure import postgres


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    conn = psycopg.connect(os.environ["LEDGER"])
    postgres.install(conn)
    conn.execute("CREATE TABLE IF NOT EXISTS settled (row integer PRIMARY KEY, token bigint NOT NULL)")
    conn.commit()
    client = tenure.Client.from_env()
    client.drain_on(signal.SIGTERM, within=20)
    with client.session(ttl=10) as session:
        fences = {"postgres:ledger": postgres.fence(conn)}
        with session.acquire("ledger/settlement", wait=True, fences=fences) as lease:
            for _ in range(rows):
                with lease.permit(max_op=1) as permit, postgres.transaction(conn, permit, serial=True) as tx:
                    row = int(tx.position or b"0") + 1
                    tx.execute("INSERT INTO settled VALUES (%s, %s)", (row, permit.token))
                    tx.advance(str(row))
            print(f"settled up to row {row} under token {lease.token}")
    client.close()


if __name__ == "__main__":
    main()
