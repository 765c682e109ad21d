"""Credentials: the file, the header, and the certificate of the cluster's authority."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import tempfile
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import tenure


SECRET = "tenure_00010203ffeeddcc_" + "a5" * 32


class Answering(BaseHTTPRequestHandler):
    """Answers every request and remembers what it was told."""

    seen: list[str | None] = []

    def do_GET(self) -> None:
        type(self).seen.append(self.headers.get("Authorization"))
        body = json.dumps({"holders": [], "state": "free"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class CredentialTests(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        Answering.seen = []

    def serve(self, context: ssl.SSLContext | None = None) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"127.0.0.1:{server.server_address[1]}"

    def credential(self, endpoints: str, secret: str = SECRET, roots: str = "") -> str:
        path = self.folder / "pay.cred"
        text = f"tenure-credential: 1\nname: pay\nendpoints: {endpoints}\ncredential: {secret}\n\n{roots}"
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    def test_a_credential_file_is_read_and_its_secret_sent(self) -> None:
        path = self.credential(f"127.0.0.1:1,{self.serve()}")
        with mock.patch.dict(os.environ, {"TENURE_CREDENTIAL": path}):
            os.environ.pop("TENURE_ENDPOINTS", None)
            client = tenure.Client.from_env()
        self.assertIsNotNone(client.lease("a"))
        self.assertEqual(Answering.seen, [f"Bearer {SECRET}"])
        self.assertNotIn(SECRET, repr(tenure.read_credential(path)))
        client.close()

    def test_the_environment_overrides_the_endpoints(self) -> None:
        path = self.credential("127.0.0.1:1")
        with mock.patch.dict(os.environ, {"TENURE_CREDENTIAL": path, "TENURE_ENDPOINTS": self.serve()}):
            client = tenure.Client.from_env()
        self.assertIsNotNone(client.lease("a"))
        client.close()

    def test_a_node_must_show_a_certificate_of_the_authority(self) -> None:
        key, certificate = self.folder / "key.pem", self.folder / "root.pem"
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
        names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
        try:
            subprocess.run([*make, *names], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f"no certificate can be made here: {error}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        endpoint = self.serve(context)
        path = self.credential(endpoint, roots=certificate.read_text())
        client = tenure.Client(credential=tenure.read_credential(path))
        self.assertIsNotNone(client.lease("a"))
        self.assertIsNotNone(client.lease("a"), "the connection is used again")
        client.close()
        own = {"TENURE_CA": str(certificate), "TENURE_CERT": str(certificate), "TENURE_KEY": str(key)}
        with mock.patch.dict(os.environ, {**own, "TENURE_ENDPOINTS": endpoint, "TENURE_CREDENTIAL": path}):
            client = tenure.Client.from_env()
        self.assertIsNotNone(client.lease("a"))
        client.close()
        stranger = tenure.Client(f"https://{endpoint}")
        with self.assertRaises(tenure.Unreachable):
            stranger.lease("a", timeout=0.5)
        self.assertEqual(Answering.seen, [f"Bearer {SECRET}"] * 3, "nothing is sent to a node that is not ours")

    def test_a_file_that_others_can_read_is_refused(self) -> None:
        path = self.credential("127.0.0.1:1")
        os.chmod(path, 0o640)
        with self.assertRaisesRegex(ValueError, "can be read by other users"):
            tenure.read_credential(path)

    def test_a_token_is_read_again_when_its_file_changes(self) -> None:
        path = self.folder / "token"
        path.write_text("aa.bb.cc\n")
        client = tenure.Client(self.serve(), credential=tenure.read_credential(path))
        client.lease("a")
        path.write_text("newer.bb.cc\n")
        client.lease("a")
        path.unlink()
        client.lease("a")
        self.assertEqual(Answering.seen, ["Bearer aa.bb.cc", "Bearer newer.bb.cc", "Bearer newer.bb.cc"])
        client.close()

    def test_a_broken_file_says_what_is_wrong_and_no_secret(self) -> None:
        good = f"tenure-credential: 1\nname: pay\ncredential: {SECRET}\n"
        cases = {
            "{": "first line",
            good.replace(": 1", ": 2", 1): "use a newer release",
            good + "what is this\n": "line 4 of",
            good.replace("name: pay\n", ""): "no line `name:`",
            good.replace("_a", "_z"): "`credential:`",
            good + "-----BEGIN CERTIFICATE-----\n": "ends inside",
        }
        for text, said in cases.items():
            path = self.folder / "broken"
            path.write_text(text)
            path.chmod(0o600)
            with self.subTest(said=said), self.assertRaisesRegex(ValueError, said) as caught:
                tenure.read_credential(path)
            self.assertNotIn(SECRET[-20:], str(caught.exception))
        with self.assertRaisesRegex(ValueError, "cannot be read"):
            tenure.read_credential(self.folder / "none")


if __name__ == "__main__":
    unittest.main()
