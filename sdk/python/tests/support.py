"""What tests share: a real node, a real PostgreSQL, and waiting for conditions instead of sleeping."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tenure.testing import LocalNode, _free_port

ROOT = Path(__file__).parents[3]


def binary() -> str | None:
    """The program under test: `TENURE_BIN`, or what the workspace has built."""
    built = ROOT / "target" / "debug" / "tenure"
    return os.environ.get("TENURE_BIN") or (str(built) if built.is_file() else shutil.which("tenure"))


def until(what: str, condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Waits until a condition holds and returns what it found."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


class NodeCase(unittest.TestCase):
    """Tests against one real node, started once for the class."""

    node: LocalNode

    @classmethod
    def setUpClass(cls) -> None:
        found = binary()
        if found is None:
            raise unittest.SkipTest("the program tenure is not built; set TENURE_BIN")
        cls.node = LocalNode(found).start()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.node.__exit__(None, None, None)

    def resource(self, name: str = "x") -> str:
        """A resource of this test alone."""
        return f"{self.id().rsplit('.', 1)[1]}/{name}"


class Postgres:
    """A PostgreSQL of its own, on a free port, without durability."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tenure-pg-"))
        self.port = _free_port()
        self.dsn = f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres connect_timeout=10"
        found = self.programs()
        assert found is not None
        user: dict[str, Any] = {}
        if os.getuid() == 0:
            entry = pwd.getpwnam("postgres")
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
            user = {"user": entry.pw_uid, "group": entry.pw_gid}
        data = str(self.folder / "data")
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": self.folder}
        initdb = [f"{found}/initdb", "-A", "trust", "-U", "postgres", "-N", "-E", "UTF8", "--locale=C.UTF-8", "-D", data]
        subprocess.run(initdb, check=True, **quiet, **user)
        options = ["-p", str(self.port), "-k", str(self.folder), "-c", "fsync=off", "-c", "listen_addresses=127.0.0.1"]
        self.process = subprocess.Popen([f"{found}/postgres", "-D", data, *options], **quiet, **user)
        until("PostgreSQL serves", self._serves, 60)

    @staticmethod
    def programs() -> Path | None:
        """Where PostgreSQL's own programs are."""
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        if found:
            return found[-1].parent
        named = shutil.which("initdb")
        return Path(named).parent if named else None

    def connect(self, **options: Any) -> Any:
        """A connection."""
        import psycopg

        return psycopg.connect(self.dsn, **options)

    def _serves(self) -> bool:
        import psycopg

        try:
            self.connect().close()
            return True
        except psycopg.OperationalError:
            return False

    def stop(self) -> None:
        """Ends it and removes its data."""
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def postgres() -> Postgres:
    """A PostgreSQL, or the test is skipped."""
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise unittest.SkipTest("psycopg is not installed") from error
    if Postgres.programs() is None:
        raise unittest.SkipTest("PostgreSQL is not installed")
    return Postgres()
