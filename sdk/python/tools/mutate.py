"""Breaks one rule of this package at a time and shows that a test notices: the table in MUTATIONS.md.

    python3 tools/mutate.py [--write] [NAME …]

Each mutation is applied to a copy of the package. ``TENURE_BIN`` names the program for tests with a node.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parents[1]
SUITE = HERE.parent / "conformance"


@dataclass(frozen=True)
class Mutation:
    """What is broken, where, and which test must fail."""

    name: str
    file: str
    old: str
    new: str
    caught_by: str


MUTATIONS = [
    Mutation(
        "the deadline counts from the receipt of the answer", "_holder.py",
        "        deadline = self._acknowledged(number, ttl)\n        if deadline is not None and not known:",
        "        deadline = self._acknowledged(number, ttl)\n        deadline = deadline and Deadline(now, deadline.usable)\n        if deadline is not None and not known:",
        "script the_deadline_counts_from_the_send",
    ),
    Mutation(
        "notices are taken in after the deadline moved", "_holder.py",
        "        for token, why in answer.noticed:\n            self.noticed(token, why)\n",
        "        found = next((s for s in self._transmissions if s[0] == answer.number), None)\n"
        "        if found: self._move_deadline(Deadline(found[1], self.timing.usable_of(answer.ttl)), now)\n"
        "        for token, why in answer.noticed:\n            self.noticed(token, why)\n",
        "vectors",
    ),
    Mutation(
        "a pause is slept over (no gap rule)", "_holder.py",
        "        if self._planned_wake is None:\n            return None\n        noticed",
        "        return None\n        noticed", "vectors",
    ),
    Mutation(
        "only one clock counts", "_timing.py", "return max(boot, raw, 0)", "return max(raw, 0)", "vectors",
    ),
    Mutation(
        "a grant moves the deadline", "_holder.py",
        "        names = set(named)\n", "        names = set(named)\n        self._deadline = Deadline(now, self.timing.usable_of(self.timing.ttl))\n",
        "vectors",
    ),
    Mutation(
        "permits are given after a release was sent", "_holder.py",
        "        if lease.giving_back:\n            return NoPermit(\"giving_back\")\n", "", "script a_lost_release_gives_no_permit",
    ),
    Mutation(
        "an old answer moves the deadline back", "_holder.py",
        "if not self.session_ended and (old is None or deadline.remaining(now) >= old.remaining(now)):",
        "if not self.session_ended:", "vectors",
    ),
    Mutation(
        "the answer to a repeated open is believed", "_holder.py",
        "if deadline is not None and not known:", "if deadline is not None:", "vectors",
    ),
    Mutation(
        "a repeated command gets a new number", "_core.py",
        "                sent = True\n                if not repeat and method != \"GET\":\n                    raise\n            except Refused",
        "                sent = True\n                body = {**body, \"number\": body[\"number\"] + 1}\n            except Refused",
        "script lost_answer_to_an_acquire",
    ),
    Mutation(
        "a repeated open draws a new nonce", "_core.py",
        '"nonce": driver.nonce', '"nonce": os.urandom(16).hex()', "script lost_answer_to_an_open",
    ),
    Mutation(
        "an ended session is a true no even after a lost answer", "_core.py",
        '                    error.effect = "unknown"\n', "", "script unknown_session_after_a_lost_answer",
    ),
    Mutation(
        "a fork may use the lease", "_driver.py",
        "        if os.getpid() != self.pid:\n            return NoPermit(\"forked\")\n", "",
        "test_client.ClientTests.test_a_fork_holds_nothing",
    ),
    Mutation(
        "a lease is given back under a running operation", "_driver.py",
        "                if not out:\n                    break\n                left = self.logic.give_back_wait",
        "                break\n                left = self.logic.give_back_wait",
        "test_client.ClientTests.test_a_drain_waits_for_permits_and_gives_up_in_time",
    ),
    Mutation(
        "an acquire overtakes the release before it", "_driver.py",
        "                if self.logic.session_ended or asked.called_off:\n                    break\n                self.changed.wait(1.0)",
        "                break",
        "test_client.ClientTests.test_an_acquire_does_not_overtake_the_release_before_it",
    ),
    Mutation(
        "a commit does not ask whether the lease still has time", "postgres.py",
        "        yield inside\n        permit.check()  # judged again before the commit; the server's timers and the token judge after it\n",
        "        yield inside\n",
        "test_postgres.PostgresTests.test_work_that_outlasts_the_lease_is_rolled_back",
    ),
]  # fmt: skip


def caught(mutation: Mutation, broken: bool = True) -> bool | None:
    """Whether its test fails with the mutation; `None` if the test could not run here."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(HERE / "src", source)
        path = source / "tenure" / mutation.file
        text = path.read_text()
        if text.count(mutation.old) != 1:
            raise SystemExit(f"{mutation.name}: what it changes occurs {text.count(mutation.old)} times")
        if broken:
            text = text.replace(mutation.old, mutation.new)
        compile(text, mutation.file, "exec")  # a mutation that is no program would prove nothing
        path.write_text(text)
        environment = {**os.environ, "PYTHONPATH": f"{source}:{HERE / 'tests'}"}
        kind, _, script = mutation.caught_by.partition(" ")
        if kind == "vectors":
            command = [sys.executable, str(HERE / "tests/test_vectors.py")]
        elif kind == "script":
            agent = f"{sys.executable} -m tenure.agent"
            command = [sys.executable, str(SUITE / "node.py"), "--agent", agent, str(SUITE / "scripts" / f"{script}.json")]
        else:
            command = [sys.executable, "-m", "unittest", mutation.caught_by]
        try:
            done = subprocess.run(command, env=environment, cwd=HERE / "tests", capture_output=True, text=True, timeout=90)
        except subprocess.TimeoutExpired:
            return True  # a test that never ends has noticed as well
        if "skipped=" in done.stderr:
            return None
        return done.returncode != 0


def main() -> int:
    names = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    rows, missed = [], 0
    wanted = [mutation for mutation in MUTATIONS if not names or mutation.name in names]
    # A test that fails anyway would prove nothing either.
    for mutation in {one.caught_by: one for one in wanted}.values():
        if caught(mutation, broken=False):
            raise SystemExit(f"{mutation.caught_by} fails without any mutation")
    for mutation in wanted:
        found = caught(mutation)
        said = {True: "caught", False: "NOT CAUGHT", None: "skipped"}[found]
        missed += found is False
        print(f"{said:<11} {mutation.name}  ({mutation.caught_by})", flush=True)
        rows.append(f"| {mutation.name} | `{mutation.file}` | `{mutation.caught_by}` | {said} |")
    if "--write" in sys.argv and not names:
        head = [
            "# Mutations of the Python package", "",
            "Each rule was broken alone, and the named test was seen to fail: `python3 tools/mutate.py --write`.",
            "`vectors` and `script` are of the [conformance suite](../conformance/README.md), the others of",
            "`tests/`.", "",
            "| what is broken | in | caught by | seen |", "|---|---|---|---|",
        ]  # fmt: skip
        (HERE / "MUTATIONS.md").write_text("\n".join(head + rows) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
