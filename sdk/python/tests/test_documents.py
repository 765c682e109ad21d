"""What the documents promise runs: the quick start, the examples, the reference, the version."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

import tenure
from support import ROOT, NodeCase, binary
from support import postgres as start_postgres
from tenure.testing import LocalNode

HERE = Path(__file__).parents[1]


def run(arguments: list[str], **environment: str) -> str:
    """Runs a program with this package and returns what it printed."""
    found = {**os.environ, "PYTHONPATH": str(HERE / "src"), **environment}
    done = subprocess.run([sys.executable, *arguments], env=found, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise AssertionError(f"{arguments} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


class Documents(NodeCase):
    def test_the_quick_start_runs_and_is_short(self) -> None:
        text = (HERE / "README.md").read_text()
        code = re.findall(r"```python\n(.*?)```", text, re.S)[0]
        self.assertLessEqual(len([line for line in code.splitlines() if line.strip()]), 10)
        self.assertIn("held under token", run(["-W", "error", "-c", code], TENURE_ENDPOINTS=self.node.endpoint))

    def test_the_leader_example(self) -> None:
        said = run([str(HERE / "examples/leader.py"), "here:1", "0.3"], TENURE_ENDPOINTS=self.node.endpoint)
        self.assertIn("warm", said)
        self.assertIn("leading under token", said)

    def test_the_report_example(self) -> None:
        with LocalNode(binary()) as node:
            self.assertIn("written", run([str(HERE / "examples/report.py")], TENURE_ENDPOINTS=node.endpoint))
            self.assertIn("skipped", run([str(HERE / "examples/report.py")], TENURE_ENDPOINTS=node.endpoint))

    def test_the_ledger_example_resumes(self) -> None:
        database = start_postgres()
        self.addCleanup(database.stop)
        environment = {"TENURE_ENDPOINTS": self.node.endpoint, "LEDGER": database.dsn}
        self.assertIn("up to row 3 ", run([str(HERE / "examples/ledger.py"), "3"], **environment))
        self.assertIn("up to row 5 ", run([str(HERE / "examples/ledger.py"), "2"], **environment))

    def test_the_reference_is_what_the_docstrings_say(self) -> None:
        run([str(HERE / "tools/reference.py")])

    def test_the_version_is_that_of_the_server(self) -> None:
        found = re.search(r'^version = "(.*?)"', (HERE / "pyproject.toml").read_text(), re.M)
        assert found is not None
        self.assertEqual(found[1], tenure.__version__)
        workspace = ROOT / "Cargo.toml"
        if workspace.is_file():
            server = re.search(r'^version = "(.*?)"', workspace.read_text(), re.M)
            assert server is not None
            self.assertEqual(server[1], tenure.__version__)

    def test_nothing_but_the_standard_library_is_imported(self) -> None:
        names = set()
        for path in (HERE / "src/tenure").glob("*.py"):
            names |= set(re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.M))
        foreign = names - set(sys.stdlib_module_names) - {"tenure"}
        self.assertEqual(foreign, set())


class Package(unittest.TestCase):
    def test_a_wheel_can_be_built_and_used_from_elsewhere(self) -> None:
        if not all(importlib.util.find_spec(name) for name in ("pip", "setuptools", "wheel")):
            self.skipTest("pip, setuptools and wheel are not installed")
        with tempfile.TemporaryDirectory() as folder:
            pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", folder]
            subprocess.run([*pip, str(HERE)], check=True, capture_output=True, timeout=120)
            [wheel_file] = Path(folder).glob("tenure-*.whl")
            names = zipfile.ZipFile(wheel_file).namelist()
            self.assertTrue({"tenure/py.typed", "tenure/fence.sql", "tenure/aio.py"} <= set(names), names)
            code = "import tenure, tenure.postgres; print(tenure.__file__, len(tenure.postgres.schema_sql()))"
            found = {**os.environ, "PYTHONPATH": str(wheel_file)}
            said = subprocess.run([sys.executable, "-c", code], env=found, capture_output=True, text=True, cwd=folder)
            self.assertIn(str(wheel_file), said.stdout, said.stderr)


if __name__ == "__main__":
    unittest.main()
