"""The agent program of the conformance suite: ``python -m tenure.agent``.

It does what the lines on its input say and reports on its output, as ``sdk/conformance/README.md``
specifies. It decides nothing; it is the thinnest possible program around this package.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any

import tenure
from tenure._errors import TenureError

PROTOCOL = 1


def boot() -> int:
    """Nanoseconds of the clock that all processes of one machine share."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Agent:
    """What has been opened, acquired and taken so far, by the names that the runner gave."""

    def __init__(self) -> None:
        self.client = tenure.Client.from_env()
        self.sessions: dict[str, tenure.Session] = {}
        self.leases: dict[str, tenure.Lease] = {}
        self.permits: dict[str, tenure.Permit] = {}
        self.connections: dict[str, Any] = {}
        self.stops: dict[str, threading.Event] = {}
        self.lock = threading.Lock()

    def say(self, line: dict[str, Any]) -> None:
        """One line on the output."""
        with self.lock:
            sys.stdout.write(json.dumps({"t": boot(), **line}, separators=(",", ":")) + "\n")
            sys.stdout.flush()

    def serve(self) -> None:
        """Each line in a thread of its own, so that one that waits keeps no other waiting."""
        for line in sys.stdin:
            if line.strip():
                threading.Thread(target=self.answer, args=(json.loads(line),), daemon=True).start()
        os._exit(0)

    def answer(self, asked: dict[str, Any]) -> None:
        """Does one command and says what came of it."""
        begun = boot()
        said: dict[str, Any] = {"id": asked["id"], "from": begun}
        try:
            command = getattr(self, f"do_{asked['do']}", None)
            if command is None:
                said["error"] = {"kind": "no_such_command", "effect": "not_applied", "message": asked["do"]}
            else:
                said["ok"] = command(asked) or {}
        except TenureError as error:
            said["error"] = described(error)
        except Exception as error:
            said["error"] = {"kind": "crash", "effect": "unknown", "message": f"{type(error).__name__}: {error}"}
        self.say(said)

    def do_hello(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {"sdk": "python", "version": tenure.__version__, "protocol": PROTOCOL, "pid": os.getpid()}

    def do_open(self, asked: dict[str, Any]) -> dict[str, Any]:
        session = self.client.session(
            asked["ttl_ms"] / 1000,
            holder=asked.get("holder"),
            strict=asked.get("strict", False),
            open_within=asked.get("within_ms", 10_000) / 1000,
            events=asked.get("events", True),
        )
        self.sessions[asked["session"]] = session
        return {"session_number": session.number, "remaining_ns": int(session.remaining() * 1e9)}

    def do_acquire(self, asked: dict[str, Any]) -> dict[str, Any]:
        wait = asked.get("wait_ms")
        lease = self.sessions[asked["session"]].acquire(
            asked["resource"],
            wait=True if wait == "forever" else None if wait is None else wait / 1000,
            mode=asked.get("mode", "exclusive"),
            slots=asked.get("slots"),
            fences=asked.get("fences", ()),
            timeout=asked.get("timeout_ms", 10_000) / 1000,
        )
        self.leases[asked["lease"]] = lease
        name = asked["lease"]
        lease.on_change(lambda status: self.say({"event": "status", "lease": name, **status_of(status)}))
        return {"token": lease.token, "generation": lease.generation, "slot": lease.slot, "waited_ms": lease.waited * 1000}

    def do_state(self, asked: dict[str, Any]) -> dict[str, Any]:
        lease = self.leases[asked["lease"]]
        return {**status_of(lease.status()), "remaining_ns": int(lease.remaining() * 1e9)}

    def do_permit(self, asked: dict[str, Any]) -> dict[str, Any]:
        lease = self.leases[asked["lease"]]
        permit = lease.read_permit() if asked.get("read") else lease.permit(asked.get("max_op_ms", 0) / 1000)
        self.permits[asked["permit"]] = permit
        return taken(permit)

    def do_done(self, asked: dict[str, Any]) -> dict[str, Any]:
        at = boot()
        self.permits.pop(asked["permit"]).done()
        return {"at": at}

    def do_put(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A guarded write under a permit of its own; with ``stop`` the process stops itself between check and send."""
        lease = self.leases[asked["lease"]]
        with lease.permit(asked.get("max_op_ms", 0) / 1000) as permit:
            report = taken(permit)
            driver = lease._driver
            body: dict[str, Any] = {"value": asked["value"], "resource": lease.resource, "token": permit.token}
            if asked.get("stop"):
                self.say({"event": "stopping", "lease": asked["lease"]})
                stop_here()
            # Past the package's own check on purpose: what is tested here is the fence.
            with driver.lock:
                numbered = driver.numbered()
            end = time.monotonic() + 10
            found = self.client._core.command(
                "PUT", f"/v1/registers/{asked['key']}", {**body, **numbered}, session=driver.id,
                until=lambda: end - time.monotonic(),
            )[1]  # fmt: skip
            return {**report, "revision": found["revision"], "done": boot()}

    def do_get(self, asked: dict[str, Any]) -> dict[str, Any]:
        found = self.client.registers.get(asked["key"])
        return {"value": None} if found is None else {"value": found.text, "revision": found.mod_revision}

    def do_release(self, asked: dict[str, Any]) -> dict[str, Any]:
        end = self.leases[asked["lease"]].release()
        return {"end": end.kind, "why": end.why}

    def do_drain(self, asked: dict[str, Any]) -> dict[str, Any]:
        end = self.leases[asked["lease"]].drain(asked["within_ms"] / 1000)
        return {"end": end.kind, "why": end.why}

    def do_transfer(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.leases[asked["lease"]].transfer(asked["to"])
        return {}

    def do_close(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.sessions[asked["session"]].close()
        return {}

    def do_endpoints(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {"endpoints": self.client.endpoints}

    def do_busy(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Computes without a pause: in Python, holds the GIL as much as Python code can."""
        end = time.monotonic() + asked["ms"] / 1000
        count = 0
        while time.monotonic() < end:
            count += sum(range(20_000))
        return {"count": count % 10}

    def do_fork(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A fork of this process asks for a permit."""
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                self.leases[asked["lease"]].permit()
                answer = "permitted"
            except tenure.PermitRefused as refused:
                answer = refused.reason.kind
            except BaseException as error:
                answer = repr(error)
            os.write(write, answer.encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as child:
            answer = child.read()
        os.wait()
        return {"answer": answer}

    def do_work(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Works under permits until told to stop: one report for each permit, with what the write came to."""
        stop = self.stops.setdefault(asked["lease"], threading.Event())
        lease = self.leases[asked["lease"]]
        number = 0
        while not stop.is_set():
            number += 1
            try:
                permit = lease.permit(asked.get("max_op_ms", 0) / 1000)
            except tenure.PermitRefused as refused:
                self.say({"event": "refused", "lease": asked["lease"], "reason": refused.reason.kind})
                if refused.reason.kind in ("ended", "unknown", "giving_back"):
                    break
                stop.wait(0.02)
                continue
            with permit:
                report = taken(permit)
                time.sleep(asked.get("hold_ms", 5) / 1000)
                outcome = self.write(asked, permit, f"{asked.get('value', '')}{number}")
                over = boot()
            self.say({"event": "worked", "lease": asked["lease"], **report, "done": over, **outcome})
            stop.wait(asked.get("every_ms", 10) / 1000)
        return {"rounds": number}

    def write(self, asked: dict[str, Any], permit: tenure.Permit, value: str) -> dict[str, Any]:
        """One write of a worker: to a register, to PostgreSQL, or nowhere."""
        begun = boot()
        try:
            if "key" in asked:
                register = self.client.registers.put(asked["key"], value, permit=permit)
                return {"wrote": value, "revision": register.mod_revision, "write_from": begun}
            if "dsn" in asked:
                self.write_row(asked, permit, value)
                return {"wrote": value, "write_from": begun}
            return {}
        except TenureError as error:
            return {"error": described(error), "write_from": begun}

    def write_row(self, asked: dict[str, Any], permit: tenure.Permit, value: str) -> None:
        """A row in PostgreSQL with the token that wrote it; without the fence if so asked, to show what happens."""
        from tenure import postgres

        conn = self.connection(asked)
        sql = asked["sql"]
        if asked.get("fenced", True):
            with postgres.transaction(conn, permit) as tx:
                tx.execute(sql, (permit.token, value))
        else:
            with conn.cursor() as cursor:
                cursor.execute(sql, (permit._lease.token, value))
            conn.commit()

    def connection(self, asked: dict[str, Any]) -> Any:
        """A connection of its own for each lease."""
        import psycopg

        conn = self.connections.get(asked["lease"])
        if conn is None or conn.closed:
            for name in [name for name in self.connections if self.leases[name].status().state.kind == "ended"]:
                self.connections.pop(name).close()
            conn = self.connections[asked["lease"]] = psycopg.connect(asked["dsn"])
        return conn

    def do_take_over(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Installs the token in the PostgreSQL fence."""
        from tenure import postgres

        conn = self.connection(asked)
        found = self.leases[asked["lease"]].take_over({asked["fence"]: postgres.fence(conn)})[asked["fence"]]
        return {"predecessor": found.predecessor, "seq": found.seq}

    def do_row(self, asked: dict[str, Any]) -> dict[str, Any]:
        """One fenced row; with ``stop`` the process stops itself after the check, before anything is sent."""
        lease = self.leases[asked["lease"]]
        self.connection(asked)
        with lease.permit(asked.get("max_op_ms", 0) / 1000) as permit:
            report = taken(permit)
            token = permit.token
            if asked.get("stop"):
                self.say({"event": "stopping", "lease": asked["lease"]})
                stop_here()
            conn = self.connection(asked)
            try:
                # Past the package's own check on purpose: what is tested here is the fence in the database.
                with conn.cursor() as cursor:
                    if asked.get("fenced", True):
                        cursor.execute("SELECT tenure_fence.enter(%s, %s, %s)", (lease.scope, token, 2_000))
                    cursor.execute(asked["sql"], (token, asked["value"]))
                conn.commit()
            except Exception as error:
                conn.rollback()
                code = getattr(error, "sqlstate", None)
                return {**report, "wrote": False, "code": code, "done": boot()}
            return {**report, "wrote": True, "done": boot()}

    def do_stop_work(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.stops.setdefault(asked["lease"], threading.Event()).set()
        return {}


def stop_here() -> None:
    """Stops this process, and returns when it has been resumed."""
    os.kill(os.getpid(), signal.SIGSTOP)
    # Other threads are stopped a moment later than the signal is sent: nothing is sent before the gap shows.
    end = boot() + 5_000_000_000
    while True:
        before = boot()
        time.sleep(0.005)
        if boot() - before > 300_000_000 or before > end:
            return


def taken(permit: tenure.Permit) -> dict[str, Any]:
    """When a permit was taken and when it is over at the latest, by the shared clock."""
    return {
        "token": permit._lease.token,
        "resource": permit._lease.resource,
        "taken": permit._taken.boot,
        "until": permit._taken.boot + permit._remaining,
    }


def status_of(status: tenure.LeaseStatus) -> dict[str, Any]:
    """A status as the runner reads it."""
    state = status.state
    said: dict[str, Any] = {"state": state.kind, "notice": status.notice}
    if state.jeopardy is not None:
        said["jeopardy"] = state.jeopardy.kind
    if state.end is not None:
        said["end"], said["why"] = state.end.kind, state.end.why
    return said


def described(error: TenureError) -> dict[str, Any]:
    """An error as the runner reads it."""
    said: dict[str, Any] = {"kind": type(error).__name__, "effect": error.effect, "message": str(error)}
    if isinstance(error, tenure.Refused):
        said["code"] = error.code
    if isinstance(error, tenure.PermitRefused):
        said["reason"] = error.reason.kind
        if error.reason.jeopardy is not None:
            said["jeopardy"] = error.reason.jeopardy.kind
    if isinstance(error, tenure.StillOut):
        said["out"] = error.out
    return said


if __name__ == "__main__":
    Agent().serve()
