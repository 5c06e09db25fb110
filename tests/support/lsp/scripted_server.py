"""A language server for tests, of the language of `.x` files: it does what its first word says.

It writes each message that it gets, as a line of JSON, into the file that its second word names.
Its hover is the text of the file as it has it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_START = {"line": 0, "character": 0}
_REFUSED: tuple[tuple[str, Any], ...] = (
    ("workspace/applyEdit", {"edit": {"changes": {}}}),
    ("window/showDocument", {"uri": "file:///etc/passwd"}),
    ("window/showMessageRequest", {"type": 1, "message": "?", "actions": [{"title": "Yes"}]}),
    ("workspace/executeClientCommand", {"command": "rm"}),
    ("workspace/configuration", {"items": [{"section": "x.deep"}, {"section": "y"}, {}, 1]}),
    ("workspace/workspaceFolders", None),
)


def _send(message: dict[str, Any]) -> None:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    sys.stdout.buffer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    sys.stdout.buffer.flush()


def _empty(line: int) -> dict[str, Any]:
    place = {"line": line, "character": 0}
    return {"start": place, "end": place}


class _Server:
    def __init__(self, mode: str, log: Path) -> None:
        self.mode = mode
        self.log = log
        self.texts: dict[str, str] = {}

    def receive(self) -> dict[str, Any]:
        size = 0
        while (line := sys.stdin.buffer.readline()) != b"\r\n":
            if not line:
                sys.exit()
            size = int(line.split(b":")[1])
        message: dict[str, Any] = json.loads(sys.stdin.buffer.read(size))
        with suppress(OSError), self.log.open("a") as log:
            log.write(json.dumps(message) + "\n")
        return message

    def begin(self) -> None:
        if self.mode == "hanging":
            time.sleep(1000)
        if self.mode == "no server":
            sys.exit(3)
        while self.mode == "endless head":
            sys.stdout.write("x" * 1000)
        if self.mode == "huge":
            sys.stdout.write("Content-Length: 99999999999\r\n\r\n")
            sys.stdout.flush()

    def serve(self) -> None:
        self.begin()
        while True:
            message = self.receive()
            method, params = message.get("method"), message.get("params") or {}
            document = params.get("textDocument", {})
            uri = document.get("uri", "")
            if method == "textDocument/didOpen":
                self.texts[uri] = document["text"]
            elif method == "textDocument/didChange":
                self.texts[uri] = params["contentChanges"][0]["text"]
                self.publish(uri)
            elif method == "exit":
                sys.exit()
            elif "id" in message:
                _send({"id": message["id"], **self.answer(str(method), uri)})

    def answer(self, method: str, uri: str) -> dict[str, Any]:
        """Return `result` or `error`."""
        if method == "textDocument/hover" and self.mode == "reaching":
            return {"result": {"contents": json.dumps(self.refused())}}
        if method == "textDocument/hover":
            return self.hover(uri)
        if method == "initialize":
            return {"result": {"capabilities": {}}}
        if self.mode == "many":
            return {"result": [{"uri": uri, "range": _empty(line)} for line in range(1_000)]}
        folder = uri.rpartition("/")[0]
        own = (f"{folder}/{name}" for name in (".env", "link", "%00"))
        return {
            "result": [
                {"uri": name, "range": _empty(0)}
                for name in (*own, "file:///etc/hostname", "x:thing")
            ]
        }

    def hover(self, uri: str) -> dict[str, Any]:
        times = self.log.read_text().count('"textDocument/hover"')
        if self.mode.startswith("dies") and times <= int(self.mode[4:] or "999"):
            os.kill(os.getpid(), 9)
        while self.mode == "flooding":
            _send({"method": "window/logMessage", "params": {"type": 4, "message": "x" * 9999}})
        if self.mode == "silent":
            while self.receive()["method"] != "$/cancelRequest":
                pass
        if self.mode == "changing" and times < 3:
            return {"error": {"code": -32801, "message": "content modified"}}
        if self.mode == "refusing":
            return {"error": {"code": -32603, "message": "no\nsuch \x1b[31m thing"}}
        if self.mode == "deep":
            body = b"[" * 2_000
            sys.stdout.buffer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            sys.stdout.buffer.flush()
        if self.mode in ("wide", "wrong"):
            return {"result": {"contents": 3 if self.mode == "wrong" else "x" * 3_000_000}}
        text = json.dumps(self.asked()) if self.mode == "asking" else self.texts[uri]
        return {"result": {"contents": {"kind": "plaintext", "value": text}}}

    def asked(self) -> list[Any]:
        """Ask for what a client may refuse, and return its answers."""
        answers = []
        for number, (method, params) in enumerate(_REFUSED):
            _send({"id": number, "method": method, "params": params})
            answer = self.receive()
            answers.append(answer.get("result", answer.get("error")))
        return answers

    def refused(self) -> list[int]:
        """Return which attempts failed of those that a confined one should not make."""
        refused = []
        attempts: tuple[Callable[[], object], ...] = (
            lambda: Path(".env").read_text(),
            lambda: Path("new").touch(),
            lambda: Path("a.x").write_text(""),
            lambda: socket.create_connection(("127.0.0.1", int(self.log.name))),
        )
        for number, attempt in enumerate(attempts):
            try:
                attempt()
            except OSError:
                refused.append(number)
        return refused

    def publish(self, uri: str) -> None:
        """Tell the lines with `!` as errors, in two steps."""
        lines = [number for number, line in enumerate(self.texts[uri].split("\n")) if "!" in line]
        for part in (lines[:1], lines):
            items = [{"range": _empty(line), "message": "!"} for line in part]
            params = {"uri": uri, "diagnostics": items}
            _send({"method": "textDocument/publishDiagnostics", "params": params})


if __name__ == "__main__":
    _Server(sys.argv[1], Path(sys.argv[2])).serve()
