"""The vectors of the conformance suite: what the Rust holder says, this holder says."""

from __future__ import annotations

import json
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tenure._holder import Holder, HolderOptions, Jeopardy, LeaseEnd, LeaseState, NoPermit, Renewed
from tenure._timing import Moment, Timing

VECTORS = Path(__file__).parents[2] / "conformance" / "vectors"
MS = 1_000_000


def lines(name: str) -> Iterator[tuple[int, Any]]:
    with open(VECTORS / name) as file:
        for number, line in enumerate(file, 1):
            yield number, json.loads(line)


def jeopardy(doubt: Jeopardy | None) -> Any:
    if doubt is None:
        return None
    return {doubt.kind: doubt.length} if doubt.kind in ("paused", "clocks_disagree") else doubt.kind


def end(how: LeaseEnd | None) -> Any:
    assert how is not None
    if how.kind == "expired":
        return {"expired": how.why}
    if how.kind == "lost":
        assert how.suspect is not None
        return {"lost": {"why": how.why, "from": list(how.suspect.since), "length": how.suspect.length}}
    if how.kind == "fenced":
        return {"fenced": how.seen}
    return how.kind


def state(found: LeaseState | None) -> Any:
    if found is None:
        return None
    if found.kind == "jeopardy":
        return {"jeopardy": jeopardy(found.jeopardy)}
    if found.kind == "ended":
        return {"ended": end(found.end)}
    return found.kind


def refusal(no: NoPermit) -> Any:
    if no.kind == "ended":
        return {"ended": end(no.end)}
    if no.kind == "not_armed":
        return {"not_armed": no.missing}
    if no.kind == "jeopardy":
        return {"jeopardy": jeopardy(no.jeopardy)}
    if no.kind == "too_short":
        return {"too_short": {"remaining": no.remaining, "max_op": no.max_op}}
    return no.kind


class Replay:
    """One story or trace against one holder."""

    def __init__(self, head: Any) -> None:
        timing = Timing(head["ttl"], head["renew_every"], head["rho_ppm"], 50 * MS, head["sigma"]).checked()
        options = HolderOptions(head.get("strict", False), head.get("progress_within"), head.get("pause_noticed"))
        self.holder = Holder(timing, options)
        self.permits: dict[int, tuple[int, Moment, int]] = {}

    def step(self, step: Any) -> Any:
        holder, now, what = self.holder, Moment(*step["at"]), step["do"]
        token = step.get("token", 0)
        if what == "transmit":
            return holder.transmit(now, step["jitter"])
        if what == "failed":
            return holder.failed(step["number"], now)
        if what == "opened":
            return holder.opened(step["number"], step["ttl"], now)
        if what == "renewed":
            noticed = [(token, why) for token, why in step.get("noticed", ())]
            ended = [(token, why) for token, why in step.get("ended", ())]
            answer = Renewed(
                step["number"], step["ttl"], step.get("revision", 0), noticed, ended, step.get("incomplete", False)
            )
            return holder.renewed(answer, now)
        if what == "unknown_session":
            return holder.unknown_session(now)
        if what == "listed":
            return holder.listed(step["held"], Moment(*step["asked"]), now)
        if what == "granted":
            writes = step.get("mode") != "shared"
            return holder.granted(token, writes, step.get("named", ()), step.get("fences", ()), now)
        if what in ("permit", "read_permit"):
            left = holder.permit(token, now, step["max_op"], what == "permit")
            if isinstance(left, NoPermit):
                return {"refused": refusal(left)}
            if "as" in step:
                self.permits[step["as"]] = (token, now, left)
            else:
                holder.permit_done(token)
            return {"remaining": left}
        if what == "permit_left":
            _, taken, left = self.permits[step["permit"]]
            return max(left - now.since(taken), 0)
        if what == "permit_done":
            return holder.permit_done(self.permits.pop(step["permit"])[0])
        if what == "barrier":
            no = holder.barrier(token, now)
            return {"token": token} if no is None else {"refused": refusal(no)}
        if what == "armed":
            return holder.armed(token, step["fence"])
        if what == "unarmed":
            return holder.unarmed(token)
        if what == "barrier_refused":
            return holder.barrier_refused(token, step["seen"])
        if what in ("give_back", "give_back_all"):
            out = holder.give_back(token) if what == "give_back" else holder.give_back_all()
            return {"out": out} if out else "ok"
        if what == "give_back_wait":
            return holder.give_back_wait(token, Moment(*step["asked"]), now)
        if what in ("gave_back", "noticed"):
            return getattr(holder, what)(token, step["why"])
        if what == "ended":
            return holder.ended(token, step["why"], now)
        if what == "end_session":
            return holder.end_session(step.get("why"), now)
        if what == "state":
            return state(holder.state(token, now))
        if what == "jeopardy":
            return jeopardy(holder.jeopardy(now))
        if what == "lease_remaining":
            return holder.lease_remaining(token, now)
        if what == "next_wake":
            wake = holder.next_wake(now)
            return None if wake is None else list(wake)
        if what in ("give_up", "progressed", "woke", "send_due", "remaining"):
            return getattr(holder, what)(now)
        if what in ("drain", "resume", "permits_out", "give_back_refused", "notice", "forget"):
            return getattr(holder, what)(token)
        if what in ("seen", "session_ended", "ended_early"):
            return getattr(holder, what)
        if what == "tokens":
            return holder.tokens()
        raise AssertionError(f"no step is called {what}")


def replay(name: str) -> tuple[int, int]:
    """Replays a file; returns how many stories and steps it had. Raises at the first difference."""
    stories, steps = 0, 0
    current: Replay | None = None
    title = ""
    for number, line in lines(name):
        if "do" not in line:
            current, title = Replay(line), line["name"]
            stories += 1
            continue
        assert current is not None
        came = current.step(line)
        if came != line.get("expect"):
            raise AssertionError(f"{title}, line {number}: {line}\n  but got {came}")
        steps += 1
    return stories, steps


class Vectors(unittest.TestCase):
    def test_stories(self) -> None:
        stories, steps = replay("stories.jsonl")
        self.assertGreaterEqual(stories, 30)
        self.assertGreater(steps, 250)

    def test_random_traces(self) -> None:
        stories, _ = replay("random.jsonl")
        self.assertEqual(stories, 2_000)

    def test_timing(self) -> None:
        for number, line in lines("timing.jsonl"):
            with self.subTest(line=number):
                numbers = (line["ttl"], line["renew_every"], line["rho_ppm"], line["net"], line["sigma"])
                timing = Timing(*numbers)
                if line["do"] == "for_ttl":
                    self.assertEqual(Timing.for_ttl(line["ttl"]), timing)
                self.assertEqual(list(timing.broken()), line["broken"])
                derived = line.get("derived")
                if derived:
                    self.assertEqual(timing.detect, derived["detect"])
                    self.assertEqual(timing.usable_of(timing.ttl), derived["usable"])
                    for jitter, after in derived["renew_after"]:
                        self.assertEqual(timing.renew_after(jitter), after)
                    for ttl, usable in derived["usable_of"]:
                        self.assertEqual(timing.usable_of(ttl), usable)
                    for length, most in derived["disagreement_max"]:
                        self.assertEqual(timing.disagreement_max(length), most)


if __name__ == "__main__":
    unittest.main()
