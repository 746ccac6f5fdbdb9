"""A registry that has nothing, and shows it only to those whom it knows. Runs on a node: `registry.py PORT`.

Whoever asks for something under /v2/private without the right password is turned away; anything else does not exist.
Every question is printed, with the user that asked.
"""

from __future__ import annotations

import base64
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RIGHT = "ronde:right"


class Questions(BaseHTTPRequestHandler):
    """Answers what a container runtime asks."""

    def do_GET(self) -> None:
        """Answer a question."""
        kind, _, shown = self.headers.get("Authorization", "").partition(" ")
        known = base64.b64decode(shown).decode() if kind == "Basic" else ""
        user = known.partition(":")[0] or "nobody"
        is_private = self.path.startswith("/v2/private/")
        status = 401 if is_private and known != RIGHT else 404
        print(status, user, self.path, flush=True)
        code = "UNAUTHORIZED" if status == 401 else "MANIFEST_UNKNOWN"
        text = json.dumps({"errors": [{"code": code, "message": "as a test wants it"}]}).encode()
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="test"')
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)

    def do_HEAD(self) -> None:
        """Answer a question without the text."""
        self.do_GET()

    def log_message(self, *_words: object) -> None:
        """Say nothing else."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Questions).serve_forever()
