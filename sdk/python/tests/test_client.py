"""The client against a real node: what a program sees, fear by fear."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import urllib.request
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tenure
from support import NodeCase, binary, until
from tenure.testing import LocalNode, TestClock, cut_off, drop_answers, freeze


class ClientTests(NodeCase):
    def client(self, **options: Any) -> tenure.Client:
        client = tenure.Client(self.node.endpoint, **options)
        self.addCleanup(client.close, 2.0)
        return client

    def test_a_lease_is_acquired_used_and_given_back(self) -> None:
        client = self.client(holder="worker-a")
        with client.session(ttl=5) as session, session.acquire(self.resource()) as lease:
            self.assertEqual(lease.status().state.kind, "held")
            with lease.permit(max_op=0.2) as permit:
                self.assertEqual(permit.token, lease.token)
                self.assertGreater(permit.remaining(), 4)
            found = client.lease(self.resource())
            assert found is not None
            self.assertEqual(found["holder"], "worker-a")
        found = client.lease(self.resource())
        assert found is not None
        self.assertEqual(found["state"], "free")
        self.assertIsNone(client.lease(self.resource("never")))

    def test_held_is_a_true_no_with_its_facts(self) -> None:
        client = self.client()
        with client.session(ttl=5, holder="first") as first, first.acquire(self.resource()):
            with client.session(ttl=5) as second, self.assertRaises(tenure.Held) as caught:
                second.acquire(self.resource())
            self.assertEqual((caught.exception.code, caught.exception.effect), ("held", "not_applied"))
            self.assertEqual(caught.exception.fields["holder"], "first")
            with client.session(ttl=5) as second, self.assertRaises(tenure.Held):
                second.acquire(self.resource(), wait=0.3)

    def test_a_waiter_is_granted_when_the_holder_gives_back(self) -> None:
        client = self.client()
        with client.session(ttl=5) as first, client.session(ttl=5) as second:
            lease = first.acquire(self.resource())
            granted: list[tenure.Lease] = []
            waiter = threading.Thread(target=lambda: granted.append(second.acquire(self.resource(), wait=True)))
            waiter.start()
            until("it is queued", lambda: (client.lease(self.resource()) or {}).get("waiting") == 1)
            lease.release()
            waiter.join(10)
            self.assertGreater(granted[0].token, lease.token)
            self.assertGreater(granted[0].waited, 0)

    def test_permits_are_judged_at_use_after_a_pause(self) -> None:
        clock = TestClock()
        client = self.client(clock=clock)
        with client.session(ttl=10) as session, session.acquire(self.resource()) as lease:
            until("it runs regularly", lambda: session._driver.logic._planned_wake)
            with freeze_renewals(client):
                clock.jump(3)
                with self.assertRaises(tenure.PermitRefused) as caught:
                    lease.permit()
                doubt = caught.exception.reason.jeopardy
                assert doubt is not None
                self.assertEqual(doubt.kind, "paused")
            # A renewal that was sent after the pause says that it is still ours.
            until("it is held again", lambda: lease.status().state.kind == "held")
            with lease.permit():
                pass

    def test_past_the_deadline_there_is_no_permit_however_the_clocks_show_it(self) -> None:
        for move in ("jump", "suspend", "slew"):
            with self.subTest(move=move):
                clock = TestClock()
                client = self.client(clock=clock)
                with client.session(ttl=5) as session, session.acquire(self.resource(move)) as lease:
                    permit = lease.permit()
                    with freeze_renewals(client):
                        getattr(clock, move)(5)
                        with self.assertRaises(tenure.PermitRefused) as caught:
                            lease.permit()
                        doubt = caught.exception.reason.jeopardy
                        assert doubt is not None
                        self.assertEqual(doubt.kind, "past_deadline")
                        with self.assertRaises(tenure.OutOfTime):
                            permit.token
                    permit.done()

    def test_an_operation_that_does_not_fit_is_not_begun(self) -> None:
        client = self.client()
        with client.session(ttl=2) as session, session.acquire(self.resource()) as lease:
            with self.assertRaises(tenure.PermitRefused) as caught:
                lease.permit(max_op=2)
            self.assertEqual(caught.exception.reason.kind, "too_short")

    def test_a_lost_answer_to_an_acquire_is_found_again(self) -> None:
        client = self.client()
        with client.session(ttl=5) as session:
            with drop_answers(client, ":acquire"):
                asked = threading.Thread(target=lambda: session.acquire(self.resource()))
                asked.start()
                found = until("it was applied", lambda: client.lease(self.resource()))
            asked.join(10)
            again = client.lease(self.resource())
            assert again is not None
            self.assertEqual(again["generation"], found["generation"], "granted once, however often it was sent")

    def test_a_release_whose_answer_is_lost_gives_no_permit(self) -> None:
        client = self.client()
        with client.session(ttl=3, events=False) as session:
            lease = session.acquire(self.resource())
            with drop_answers(client, ":release"):
                releasing = threading.Thread(target=lease.release)
                releasing.start()
                until("the store has it back", lambda: (client.lease(self.resource()) or {}).get("state") == "free")
                with self.assertRaises(tenure.PermitRefused) as caught:
                    lease.permit()
                self.assertEqual(caught.exception.reason.kind, "giving_back")
            releasing.join(10)
            self.assertEqual(lease.status().state.kind, "ended")

    def test_an_acquire_does_not_overtake_the_release_before_it(self) -> None:
        client = self.client()
        with client.session(ttl=5) as session:
            for _ in range(20):
                lease = session.acquire(self.resource())
                threading.Thread(target=lease.release).start()
                until("it is under way or over", lambda: lease.status().state.kind == "ended" or session._driver._under_way)
                session.acquire(self.resource(), wait=5).release()

    def test_a_notice_freezes_the_deadline_and_tells_the_work(self) -> None:
        client = self.client()
        with client.session(ttl=2) as session:
            lease = session.acquire(self.resource())
            stop = lease.stop_signal()
            seen: list[str | None] = []
            lease.on_change(lambda status: seen.append(status.notice))
            client.revoke(self.resource(), reason="maintenance")
            self.assertTrue(stop.wait(5))
            until("the hook is called", lambda: "revoked" in seen)
            status = lease.wait_ended(10)
            self.assertTrue(session.is_open, "renewals go on for the session, not for this lease")
            until("the store has ended it", lambda: lease.status().state.kind == "ended", 10)
            end = lease.status().state.end
            assert end is not None
            self.assertEqual((end.kind, end.why), ("expired", "revoked"))
            self.assertIsNotNone(status)

    def test_a_revocation_at_once_is_a_loss_with_what_is_in_doubt(self) -> None:
        client = self.client()
        with client.session(ttl=5) as session:
            lease = session.acquire(self.resource())
            client.revoke(self.resource(), now=True)
            until("it has ended", lambda: lease.status().state.kind == "ended")
            end = lease.status().state.end
            assert end is not None and end.suspect is not None
            self.assertEqual((end.kind, end.why), ("lost", "revoked"))

    def test_a_transfer_goes_to_the_chosen_waiter(self) -> None:
        client = self.client()
        with client.session(ttl=5) as first, client.session(ttl=5) as second:
            lease = first.acquire(self.resource())
            with self.assertRaises(tenure.Refused) as caught:
                lease.transfer(second.number)
            self.assertEqual((caught.exception.code, caught.exception.effect), ("not_ready", "not_applied"))
            lease.permit().done()  # refused, so it is still ours
            granted: list[tenure.Lease] = []
            waiter = threading.Thread(target=lambda: granted.append(second.acquire(self.resource(), wait=True)))
            waiter.start()
            until("it is queued", lambda: (client.lease(self.resource()) or {}).get("waiting") == 1)
            lease.transfer(second.number)
            waiter.join(10)
            self.assertGreater(granted[0].token, lease.token)

    def test_a_drain_waits_for_permits_and_gives_up_in_time(self) -> None:
        client = self.client()
        with client.session(ttl=5) as session:
            lease = session.acquire(self.resource())
            permit = lease.permit()
            with self.assertRaises(tenure.StillOut) as caught:
                lease.drain(within=0.1)
            self.assertEqual(caught.exception.out, 1)
            lease.permit().done()  # the intake is open again
            threading.Timer(0.2, permit.done).start()
            self.assertEqual(lease.drain(within=5).kind, "released")

    def test_semaphores_and_shared_leases(self) -> None:
        client = self.client()
        with client.session(ttl=5) as a, client.session(ttl=5) as b, client.session(ttl=5) as c:
            one, two = a.acquire(self.resource("gpu"), slots=2), b.acquire(self.resource("gpu"), slots=2)
            self.assertEqual({one.slot, two.slot}, {0, 1})
            self.assertEqual(one.scope, f"{self.resource('gpu')}#{one.slot}")
            with self.assertRaises(tenure.Held):
                c.acquire(self.resource("gpu"), slots=2)
            first, second = a.acquire(self.resource(), mode="shared"), b.acquire(self.resource(), mode="shared")
            with self.assertRaises(tenure.PermitRefused) as caught:
                first.permit()
            self.assertEqual(caught.exception.reason.kind, "read_only")
            with second.read_permit() as permit, self.assertRaises(tenure.PermitRefused):
                permit.token

    def test_several_resources_are_all_or_none(self) -> None:
        client = self.client()
        with client.session(ttl=5) as a, client.session(ttl=5) as b:
            both = a.acquire_all([self.resource("1"), self.resource("2")])
            self.assertEqual([lease.resource for lease in both], [self.resource("1"), self.resource("2")])
            with self.assertRaises(tenure.Held):
                b.acquire_all([self.resource("2"), self.resource("3")])

    def test_registers_refuse_a_stale_token(self) -> None:
        client = self.client()
        key = self.resource("cursor")
        with client.session(ttl=5) as session:
            old = session.acquire(self.resource())
            with old.permit() as permit:
                session.registers.put(key, "row 1", permit=permit)
            token = old.token
            old.release()
            with session.acquire(self.resource()) as lease:
                with lease.permit() as permit:
                    revision = client.registers.put_all({key: "row 2", key + "/b": b"\xff"}, permit=permit)
                    self.assertGreater(revision, 0)
                stale = {"value": "late", "resource": self.resource(), "token": token}
                with self.assertRaises(tenure.StaleToken) as caught:
                    client._core.plain("PUT", f"/v1/registers/{key}", stale, 5)
                self.assertEqual(caught.exception.effect, "not_applied")
            found = client.registers.get(key)
            assert found is not None
            self.assertEqual(found.text, "row 2")
            self.assertEqual([one.key for one in client.registers.list(key)], [key, key + "/b"])
            self.assertIsNone(client.registers.get(self.resource("none")))

    def test_a_permit_that_is_given_back_writes_nothing(self) -> None:
        client = self.client()
        with client.session(ttl=5) as session, session.acquire(self.resource()) as lease:
            with lease.permit() as permit:
                pass
            with self.assertRaises(tenure.OutOfTime):
                client.registers.put(self.resource("k"), "v", permit=permit)

    def test_a_leaked_permit_is_warned_about_and_counted_back(self) -> None:
        client = self.client()
        with client.session(ttl=5) as session, session.acquire(self.resource()) as lease:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                lease.permit()
                gc.collect()
            self.assertTrue(any(issubclass(one.category, ResourceWarning) for one in caught))
            self.assertEqual(session._driver.logic.permits_out(lease.token), 0)

    def test_a_fork_holds_nothing(self) -> None:
        client = self.client()
        with client.session(ttl=5) as session, session.acquire(self.resource()) as lease:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # newer versions warn about forks with threads
                child = os.fork()
            if child == 0:
                code = 1
                try:
                    lease.permit()
                except tenure.PermitRefused as refused:
                    try:
                        client.session(ttl=5)
                    except tenure.Forked:
                        try:
                            lease.release()
                        except tenure.Forked:
                            lease.status()
                            code = 0 if refused.reason.kind == "forked" else 2
                finally:
                    os._exit(code)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            lease.permit().done()

    def test_a_session_that_is_ended_behind_our_back_is_lost(self) -> None:
        client = self.client()
        session = client.session(ttl=3)
        lease = session.acquire(self.resource())
        assert session._driver.id is not None
        call = urllib.request.Request(f"http://{self.node.endpoint}/v1/session", method="DELETE", data=b"{}")
        call.add_header("Tenure-Session", session._driver.id)
        urllib.request.urlopen(call, timeout=5).close()
        until("it has ended", lambda: lease.status().state.kind == "ended")
        with self.assertRaises(tenure.PermitRefused):
            lease.permit()
        with self.assertRaises(tenure.SessionEnded):
            session.acquire(self.resource("other"))

    def test_who_cannot_reach_the_store_keeps_working_until_the_deadline(self) -> None:
        client = self.client()
        with client.session(ttl=2) as session:
            lease = session.acquire(self.resource())
            with cut_off(client):
                until("it is in jeopardy", lambda: lease.status().state.kind == "jeopardy", 5)
                doubt = lease.status().state.jeopardy
                if doubt is not None and doubt.kind == "not_renewed":
                    lease.permit().done()
                until("there is no permit", lambda: not permitted(lease), 5)
            until("the store says how it ended, or that it is ours", lambda: not in_doubt(lease), 5)

    def test_strict_mode_stops_at_the_first_failure(self) -> None:
        client = self.client()
        with client.session(ttl=3, strict=True) as session, session.acquire(self.resource()) as lease:
            with cut_off(client):
                until("no permit", lambda: not permitted(lease), 5)
                self.assertGreater(lease.remaining(), 0.3, "long before the deadline")

    def test_a_frozen_client_loses_the_lease_and_says_so(self) -> None:
        client = self.client()
        other = self.client()
        with other.session(ttl=2) as waiting:
            session = client.session(ttl=1)
            lease = session.acquire(self.resource())
            with freeze(client):
                taken = waiting.acquire(self.resource(), wait=10)
            self.assertFalse(permitted(lease))
            until("it has ended", lambda: lease.status().state.kind == "ended")
            end = lease.status().state.end
            assert end is not None
            self.assertEqual(end.kind, "expired", "work had stopped in time")
            self.assertGreater(taken.token, lease.token)

    def test_without_progress_there_is_no_renewal(self) -> None:
        client = self.client()
        session = client.session(ttl=1, progress_within=0.4)
        lease = session.acquire(self.resource())
        until("it ends by itself", lambda: lease.status().state.kind == "ended", 10)
        self.assertFalse(session.is_open)

    def test_a_permit_out_at_the_deadline_is_reported(self) -> None:
        told: list[int] = []
        client = self.client()
        session = client.session(ttl=1, progress_within=0.3, hard_stop=told.append)
        lease = session.acquire(self.resource())
        permit = lease.permit()
        until("the hard stop is called", lambda: told == [lease.token], 10)
        permit.done()

    def test_a_thread_that_computes_for_five_ttls_costs_no_lease(self) -> None:
        client = self.client()
        with client.session(ttl=2) as session, session.acquire(self.resource()) as lease:
            end = time.monotonic() + 10
            while time.monotonic() < end:
                sum(range(20_000))
            until("it is held", lambda: lease.status().state.kind == "held")
            lease.permit().done()

    def test_c_code_that_keeps_the_gil_costs_the_lease_and_no_safety(self) -> None:
        client = self.client()
        other = self.client()
        session = client.session(ttl=1)
        lease = session.acquire(self.resource())
        ctypes.PyDLL(None).usleep(3_000_000)  # called without giving the GIL up: no thread of ours runs
        self.assertFalse(permitted(lease), "judged at use: the very first look sees the pause")
        with other.session(ttl=2) as successor:
            taken = successor.acquire(self.resource(), wait=10)
            self.assertGreater(taken.token, lease.token)
            until("the holder knows", lambda: lease.status().state.kind == "ended")

    def test_watching(self) -> None:
        client = self.client()
        with client.watch(self.resource("")) as watch:
            events = iter(watch)
            found: list[tenure.Event] = []
            reader = threading.Thread(target=lambda: found.extend(event for _, event in zip(range(2), events)))
            reader.start()
            self.assertTrue(watch.begun.wait(10))
            with client.session(ttl=5) as session, session.acquire(self.resource()):
                pass
            reader.join(10)
        self.assertEqual([event.kind for event in found], ["granted", "ended"])
        again = [event.kind for _, event in zip(range(2), client.watch(self.resource(""), found[0].revision))]
        self.assertEqual(again, ["granted", "ended"])

    def test_election(self) -> None:
        client = self.client()
        name = self.resource("leader")
        first = client.election(name, value="10.0.0.7:9000", ttl=3, holder="a").campaign()
        seen: list[tenure.Leader | None] = []
        over = threading.Event()
        observer = threading.Thread(target=lambda: seen.extend(client.election(name).observe(over)))
        observer.start()
        until("the leader is seen", lambda: seen)
        assert seen[0] is not None
        self.assertEqual((seen[0].holder, seen[0].value), ("a", b"10.0.0.7:9000"))
        led: list[int] = []
        warmed = threading.Event()
        stop = threading.Event()

        def lead(leadership: tenure.Leadership) -> None:
            led.append(leadership.token)
            stop.wait(10)

        candidate = client.election(name, ttl=3, holder="b")
        running = threading.Thread(target=lambda: candidate.run(lead, until=stop, warm_up=warmed.set))
        running.start()
        self.assertTrue(warmed.wait(10))
        until("it is queued", lambda: (client.lease(name) or {}).get("waiting") == 1)
        first.resign()
        until("the next leads", lambda: led)
        self.assertGreater(led[0], first.token)
        until("the change is seen", lambda: any(leader and leader.holder == "b" for leader in seen))
        stop.set()
        running.join(10)
        self.assertFalse(running.is_alive())
        over.set()
        observer.join(10)

    def test_singleton(self) -> None:
        client = self.client()
        runs: list[int] = []

        @client.singleton(self.resource(), ttl=5)
        def report(lease: tenure.Lease, day: str) -> str:
            runs.append(lease.token)
            self.assertIsNone(report(day), "while it runs here, a second call is skipped")
            return day

        self.assertEqual(report("monday"), "monday")
        self.assertEqual(report.__name__, "report")
        self.assertEqual(len(runs), 1)

        @client.singleton(self.resource(), ttl=5, rest=30)
        def short(lease: tenure.Lease) -> int:
            return lease.token

        self.assertIsNotNone(short())
        self.assertIsNone(short(), "the resource rests")

    def test_calling_off_a_wait_leaves_the_queue(self) -> None:
        client = self.client()
        with client.session(ttl=5) as first, client.session(ttl=5) as second, first.acquire(self.resource()):
            asked = second._driver.acquire([self.resource()], {}, (), tenure.FOREVER, 5)
            until("it is queued", lambda: (client.lease(self.resource()) or {}).get("waiting") == 1)
            asked.call_off()
            until("it has left", lambda: (client.lease(self.resource()) or {}).get("waiting") == 0)
            with self.assertRaises(tenure.Unanswered):
                asked.future.result(5)

    def test_numbers_that_do_not_fit_are_refused(self) -> None:
        with self.assertRaises(tenure.BrokenTiming) as caught:
            self.client().session(ttl=0.3)
        self.assertIn("outside_limits", caught.exception.broken)
        with self.assertRaises(tenure.BrokenTiming):
            self.client().session(ttl=10, max_op=9)

    def test_nobody_there_is_not_applied(self) -> None:
        client = tenure.Client("127.0.0.1:1")
        with self.assertRaises(tenure.TenureError) as caught:
            client.session(ttl=5, open_within=0.5)
        self.assertIn("127.0.0.1:1", str(caught.exception))

    def test_many_sessions_renew_in_common_messages(self) -> None:
        client = self.client()
        calls: list[str] = []
        client._core.transport.disturb = lambda method, path, endpoint: calls.append(path)
        with ThreadPoolExecutor(16) as pool:
            sessions = list(pool.map(lambda _: client.session(ttl=5, events=False), range(200)))
        calls.clear()
        begun = {session: session._driver.logic._answered for session in sessions}
        until(
            "all were renewed",
            lambda: all(session._driver.logic._answered > before for session, before in begun.items()),
        )
        self.assertGreater(calls.count("/v1/sessions:renew"), 0)
        self.assertLess(len(calls), 150, "far fewer calls than sessions")
        self.assertTrue(all(session.is_open for session in sessions))


class RestartTests(unittest.TestCase):
    def test_a_node_that_is_killed_and_comes_back_costs_no_lease(self) -> None:
        found = binary()
        if found is None:
            self.skipTest("the program tenure is not built")
        with LocalNode(found) as node:
            client = tenure.Client(node.endpoint)
            with client.session(ttl=10) as session, session.acquire("a") as lease:
                node.kill()
                until("renewals fail", lambda: lease.status().state.kind == "jeopardy", 10)
                node.start()
                until("it is held again", lambda: lease.status().state.kind == "held", 10)
                with lease.permit() as permit:
                    client.registers.put("k", "v", permit=permit)
            client.close()

    def test_sigterm_drains(self) -> None:
        found = binary()
        if found is None:
            self.skipTest("the program tenure is not built")
        program = """
import signal, sys, time, tenure
client = tenure.Client.from_env(); client.drain_on(signal.SIGTERM, within=10)
session = client.session(ttl=30); lease = session.acquire("drained")
with lease.permit():
    print("working", flush=True)
    assert lease.stop_signal().wait(0.0) is False
    while True:
        try:
            lease.permit().done()
        except tenure.PermitRefused as no:
            print(no.reason.kind, flush=True)
            break
        time.sleep(0.01)
time.sleep(60)
"""
        with LocalNode(found) as node:
            environment = {**os.environ, "TENURE_ENDPOINTS": node.endpoint}
            child = subprocess.Popen(
                [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
            )
            assert child.stdout is not None
            self.assertEqual(child.stdout.readline().strip(), "working")
            child.send_signal(signal.SIGTERM)
            self.assertEqual(child.stdout.readline().strip(), "draining")
            self.assertEqual(child.wait(20), -signal.SIGTERM, "then it does what the signal does")
            child.stdout.close()
            with urllib.request.urlopen(f"http://{node.endpoint}/v1/leases/drained", timeout=5) as answer:
                self.assertEqual(json.load(answer)["state"], "free", "given back, not left to expire")


def permitted(lease: tenure.Lease) -> bool:
    try:
        lease.permit().done()
        return True
    except tenure.PermitRefused:
        return False


def in_doubt(lease: tenure.Lease) -> bool:
    return lease.status().state.kind == "jeopardy"


class freeze_renewals:
    """The renewer stands still; permits can still be asked for."""

    def __init__(self, client: tenure.Client) -> None:
        self._lock = client._core.renewer._lock

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


if __name__ == "__main__":
    unittest.main()
