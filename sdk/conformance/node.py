#!/usr/bin/env python3
"""The scripted node: plays what a script says, and judges what an SDK's agent program does.

    node.py --agent "python3 -m tenure.agent" [SCRIPT.json …]

It runs each script: starts as many endpoints as it wants, starts the agent program with them in
TENURE_ENDPOINTS, sends the agent the script's commands and compares answers and requests. The form of a
script is specified in README.md. Python 3.10 or later, standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WITHIN = 30.0


class Failed(Exception):
    """What did not come as the script says."""


def matches(wanted: Any, found: Any, bound: dict[str, Any]) -> bool:
    """Whether `found` is what is wanted: objects may have more fields, "$name" binds or compares a value."""
    if isinstance(wanted, str) and re.fullmatch(r"\$\w+", wanted):
        if wanted == "$any":
            return found is not None
        if wanted in bound:
            return bool(bound[wanted] == found)
        bound[wanted] = found
        return True
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(matches(wanted[key], found.get(key), bound) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(lambda a, b: matches(a, b, bound), wanted, found))
    return bool(wanted == found)


def filled(value: Any, bound: dict[str, Any]) -> Any:
    """An answer with what was bound put in."""
    if isinstance(value, str) and value in bound:
        return bound[value]
    if isinstance(value, dict):
        return {key: filled(one, bound) for key, one in value.items()}
    if isinstance(value, list):
        return [filled(one, bound) for one in value]
    return value


class Play:
    """One script being played."""

    def __init__(self, script: dict[str, Any]) -> None:
        self.script = script
        self.lock = threading.Lock()
        self.bound: dict[str, Any] = {}
        self.rules = [dict(rule, used=0) for rule in script["node"]]
        self.seen: list[dict[str, Any]] = []

    def rule(self, endpoint: int, method: str, path: str, headers: Any, body: Any) -> dict[str, Any] | None:
        """The first rule that fits and is not used up."""
        with self.lock:
            self.seen.append({"endpoint": endpoint, "call": f"{method} {path}", "body": body})
            for rule in self.rules:
                if rule["used"] >= rule.get("times", 1) or rule.get("endpoint", endpoint) != endpoint:
                    continue
                if not re.fullmatch(rule["call"], f"{method} {path}"):
                    continue
                bound = dict(self.bound)
                if "session" in rule and headers.get("Tenure-Session") != rule["session"]:
                    continue
                if "body" in rule and not matches(rule["body"], body, bound):
                    continue
                self.bound = bound
                rule["used"] += 1
                return rule
        return None

    def unused(self) -> list[str]:
        """Rules that were to be used and were not."""
        with self.lock:
            return [rule["call"] for rule in self.rules if not rule.get("optional") and not rule["used"]]


def handler(play: Play, endpoint: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            text = self.rfile.read(length)
            body = json.loads(text) if text else None
            rule = play.rule(endpoint, self.command, self.path.split("?")[0], self.headers, body)
            if rule is None:
                status, answer = self.usual(body)
            else:
                time.sleep(rule.get("delay_ms", 0) / 1000)
                if rule.get("lose"):
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                status, answer = rule.get("status", 200), filled(rule.get("answer", {}), {**play.bound, **self.echoes(body)})
            data = json.dumps(answer).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                pass

        def echoes(self, body: Any) -> dict[str, Any]:
            """What answers may repeat of the request."""
            found = body if isinstance(body, dict) else {}
            return {f"$request.{key}": value for key, value in found.items()}

        def usual(self, body: Any) -> tuple[int, Any]:
            """What a script need not say: renewals are answered, the rest is unknown."""
            if self.path == "/v1/session:renew":
                session = self.headers.get("Tenure-Session")
                return 200, {"session": session, "ttl_ms": play.script.get("ttl_ms", 10_000), "number": body["number"], "last_lease_revision": 0}
            if self.path == "/v1/session" and self.command == "DELETE":
                return 200, {"released": 0}
            return 404, {"error": {"code": "no_such_call", "message": f"the script has no {self.command} {self.path}", "effect": "not_applied"}}

        do_GET = do_POST = do_PUT = do_DELETE = serve

    return Handler


class Server(ThreadingHTTPServer):
    """An endpoint. A client that hangs up is part of many scripts, so nothing is said about it."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class Agent:
    """The agent program."""

    def __init__(self, command: str, endpoints: list[str]) -> None:
        environment = {**os.environ, "TENURE_ENDPOINTS": ",".join(endpoints)}
        environment.pop("TENURE_CREDENTIAL", None)
        self.process = subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
        self.answers: dict[int, Any] = {}
        self.more = threading.Condition()
        self.next = 1
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            with self.more:
                if "id" in said:
                    self.answers[said["id"]] = said
                self.more.notify_all()

    def tell(self, command: dict[str, Any]) -> int:
        number, self.next = self.next, self.next + 1
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({**command, "id": number}) + "\n")
        self.process.stdin.flush()
        return number

    def answer(self, number: int) -> Any:
        end = time.monotonic() + WITHIN
        with self.more:
            while number not in self.answers:
                left = end - time.monotonic()
                if left <= 0:
                    raise Failed(f"command {number} was not answered")
                self.more.wait(left)
            return self.answers[number]


def run(script: dict[str, Any], command: str) -> None:
    """Plays one script; raises `Failed`."""
    play = Play(script)
    servers = [Server(("127.0.0.1", 0), handler(play, number)) for number in range(script.get("endpoints", 1))]
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    endpoints = [f"127.0.0.1:{server.server_address[1]}" for server in servers]
    if script.get("first_is_dead"):
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            endpoints.insert(0, f"127.0.0.1:{sock.getsockname()[1]}")
    agent = Agent(command, endpoints)
    asked: dict[str, int] = {}
    try:
        for step in script["agent"]:
            number = asked.pop(step["answer_of"]) if "answer_of" in step else agent.tell(step["command"])
            if "later" in step:
                asked[step["later"]] = number
                continue
            answer = agent.answer(number)
            said = {key: answer[key] for key in ("ok", "error") if key in answer}
            if not matches(step["expect"], said, play.bound):
                raise Failed(f"{step.get('command') or step['answer_of']}\n    expected {json.dumps(step['expect'])}\n    but got  {json.dumps(said)}")
        end = time.monotonic() + WITHIN
        while play.unused():
            if time.monotonic() > end:
                raise Failed(f"never asked: {play.unused()}\n    requests: " + "\n      ".join(map(json.dumps, play.seen)))
            time.sleep(0.02)
        for check in script.get("requests", []):
            count = sum(bool(re.fullmatch(check["call"], one["call"])) and matches(check.get("body", {}), one["body"] or {}, dict(play.bound)) for one in play.seen)
            if not check.get("least", 0) <= count <= check.get("most", count):
                raise Failed(f"{check['call']} was asked {count} times: {check}")
    finally:
        agent.process.kill()
        agent.process.wait()
        for server in servers:
            server.shutdown()
            server.server_close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", required=True, help="the agent program and its arguments")
    parser.add_argument("scripts", nargs="*", type=Path)
    options = parser.parse_args()
    scripts = options.scripts or sorted((Path(__file__).parent / "scripts").glob("*.json"))
    failed = 0
    for path in scripts:
        begun = time.monotonic()
        try:
            run(json.loads(path.read_text()), options.agent)
            print(f"ok      {time.monotonic() - begun:5.1f} s  {path.stem}")
        except Failed as error:
            failed += 1
            print(f"FAILED  {time.monotonic() - begun:5.1f} s  {path.stem}\n    {error}")
    print(f"{len(scripts) - failed} of {len(scripts)} scripts passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
