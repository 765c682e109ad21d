#!/usr/bin/env python3
"""Rounds of SIGSTOP around PostgreSQL writes, with an SDK's agent program.

    pauses.py --agent "python3 -m tenure.agent" --tenure PATH [--rounds 200] [--unfenced]

Each round: a holder takes a permit, is stopped between that check and its write, loses the lease to a
successor that writes, and is resumed. Then its write arrives. With the fence no stale row may appear and no
two permits may overlap; with --unfenced the stale rows show what the fence prevents. PostgreSQL's own
programs, and psycopg for this program, must be installed.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from node import Agent

TTL_MS = 1_000
SQL = "INSERT INTO rows (token, value) VALUES (%s, %s)"


def until(what: str, condition: Any, seconds: float = 30.0) -> Any:
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise SystemExit(f"not within {seconds} s: {what}")
        time.sleep(0.005)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Servers:
    """A node and a PostgreSQL, with fresh data."""

    def __init__(self, tenure: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tenure-pauses-"))
        self.processes: list[subprocess.Popen[bytes]] = []
        self.endpoint = f"127.0.0.1:{free_port()}"
        quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        serve = [tenure, "serve", "--listen", self.endpoint, "--data-dir", str(self.folder / "node")]
        self.processes.append(subprocess.Popen(serve, **quiet))
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        programs = found[-1].parent if found else Path(shutil.which("initdb") or "").parent
        data = self.folder / "pg"
        user: dict[str, Any] = {"cwd": "/"}
        if os.getuid() == 0:
            entry = pwd.getpwnam("postgres")
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
            user |= {"user": entry.pw_uid, "group": entry.pw_gid}
        initdb = [f"{programs}/initdb", "-A", "trust", "-U", "postgres", "-N", "--locale=C.UTF-8", "-D", str(data)]
        subprocess.run(initdb, check=True, **quiet, **user)
        port = free_port()
        postgres = [f"{programs}/postgres", "-D", str(data), "-p", str(port), "-k", str(self.folder), "-c", "fsync=off"]
        self.processes.append(subprocess.Popen(postgres, **quiet, **user))
        self.dsn = f"host=127.0.0.1 port={port} user=postgres dbname=postgres connect_timeout=10"
        until("the node serves", self.node_serves)
        until("PostgreSQL serves", self.postgres_serves)

    def node_serves(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.endpoint}/readyz", timeout=1):
                return True
        except OSError:
            return False

    def postgres_serves(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.dsn).close()
            return True
        except psycopg.OperationalError:
            return False

    def waiting(self, resource: str) -> int:
        with urllib.request.urlopen(f"http://{self.endpoint}/v1/leases/{resource}", timeout=5) as answer:
            return int(json.load(answer)["waiting"])

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def ask(agent: Agent, command: dict[str, Any]) -> Any:
    answer = agent.answer(agent.tell(command))
    if "ok" not in answer:
        raise SystemExit(f"{command} failed: {answer}")
    return answer["ok"]


def stopped(agent: Agent) -> bool:
    text = Path(f"/proc/{agent.process.pid}/stat").read_text()
    return bool(re.match(r" T ", text[text.rindex(")") + 1 :]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", required=True)
    parser.add_argument("--tenure", default=os.environ.get("TENURE_BIN", "tenure"))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--unfenced", action="store_true")
    options = parser.parse_args()
    import psycopg

    schema = Path(__file__).resolve().parents[2] / "crates/fence/src/postgres/fence.sql"
    servers = Servers(options.tenure)
    permits: list[tuple[int, int, int]] = []  # from, until, token, by the clock that all processes share
    late = 0
    try:
        conn = psycopg.connect(servers.dsn, autocommit=True)
        conn.execute(schema.read_text())  # type: ignore[arg-type]
        conn.execute("CREATE TABLE rows (number bigserial, token bigint, value text)")
        agents = [Agent(options.agent, [servers.endpoint]) for _ in range(2)]
        common = {"dsn": servers.dsn, "sql": SQL, "fenced": not options.unfenced}
        for index, agent in enumerate(agents):
            ask(agent, {"do": "hello"})
        fences = [] if options.unfenced else ["postgres:rows"]

        def acquire(agent: Agent, name: str) -> int:
            ask(agent, {"do": "open", "session": name, "ttl_ms": TTL_MS, "events": False})
            return agent.tell({"do": "acquire", "session": name, "lease": name, "resource": "rows", "wait_ms": "forever", "fences": fences})

        def take_over(agent: Agent, name: str) -> None:
            if fences:
                ask(agent, {"do": "take_over", "lease": name, "fence": fences[0], **common})

        def record(report: dict[str, Any]) -> None:
            permits.append((report["taken"], min(report["until"], report["done"]), report["token"]))

        for number in range(options.rounds):
            old, new = agents[number % 2], agents[(number + 1) % 2]
            one, two = f"a{number}", f"b{number}"
            granted = old.answer(acquire(old, one))
            assert "ok" in granted, granted
            take_over(old, one)
            record(ask(old, {"do": "row", "lease": one, "value": f"{one} first", **common}))
            queued = acquire(new, two)
            until("the successor is queued", lambda: servers.waiting("rows") == 1)
            stopping = old.tell({"do": "row", "lease": one, "value": f"{one} late", "stop": True, **common})
            until("the holder is stopped", lambda: stopped(old))
            token = new.answer(queued)["ok"]["token"]
            take_over(new, two)
            record(ask(new, {"do": "row", "lease": two, "value": f"{two} own", **common}))
            os.kill(old.process.pid, signal.SIGCONT)
            answer = old.answer(stopping)
            if "ok" in answer:
                # The permit was over at its own deadline; that the write came later is what the fence is for.
                record({**answer["ok"], "done": answer["ok"]["until"]})
                late += bool(answer["ok"]["wrote"])
            ask(new, {"do": "close", "session": two})
            old.tell({"do": "close", "session": one})
            assert token
        rows = [int(row[0]) for row in conn.execute("SELECT token FROM rows ORDER BY number")]
    finally:
        servers.stop()
    permits.sort()
    overlaps = sum(
        1 for (_, end, token), (begin, _, other) in zip(permits, permits[1:]) if token != other and begin < end
    )
    stale = sum(1 for before, after in zip(rows, rows[1:]) if after < before)
    said = "without the fence" if options.unfenced else "with the fence"
    print(f"{options.rounds} rounds {said}: {len(rows)} rows, {stale} stale rows, {late} late writes accepted, {overlaps} overlapping permits")
    if overlaps or (stale and not options.unfenced):
        return 1
    return 1 if options.unfenced and not stale else 0


if __name__ == "__main__":
    sys.exit(main())
