"""Runs code in the interpreter that an operator names: Python 3.9 or newer, without toolbus.

It is the text of `python -I -u -c`, whose argument is the descriptor of a socket. Lines of JSON
pass there: `{"id": ..., "code": ...}` comes, and the same id with `value`, `error` and `is_cut`
goes; a first line says that it is ready. Standard output and error belong to the code.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
import traceback
import types
from json import dumps, loads
from typing import Any

__all__ = ["main"]

_MAX_CHARS = 10_000
"""Of a value, and of an error: a `repr` may have any size, and a model reads it."""


def main(descriptor: int) -> None:
    """Run the code that comes on a descriptor, one after the other, until that ends."""
    os.set_inheritable(descriptor, False)
    streams: Any = (sys.stdout, sys.stderr)
    for stream in streams:
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv[:] = [""]
    sys.path.insert(0, os.getcwd())  # `-I` leaves it out
    process = os.getpid()
    _send(descriptor, {})
    with open(descriptor, "rb", closefd=False) as requests:
        for number, line in enumerate(requests, 1):
            request = loads(line)
            value, error, status = _run(request["code"], f"<code {number}>", vars(module))
            if os.getpid() != process:  # a fork that has come to the end of the code
                try:
                    os.write(2, (error or "").encode("utf-8", "backslashreplace"))
                finally:
                    os._exit(status)
            is_cut = max(len(value or ""), len(error or "")) > _MAX_CHARS
            reply = {"value": _cut(value), "error": _cut(error), "is_cut": is_cut}
            _send(descriptor, {"id": request["id"], **reply})


def _run(code: str, name: str, namespace: dict[str, Any]) -> tuple[str | None, str | None, int]:
    """Run code; return the `repr` of its last expression, its error, and an exit status."""
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    value = None
    try:
        tree: Any = compile(code, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        is_value = bool(tree.body) and isinstance(tree.body[-1], ast.Expr)
        last = tree.body.pop() if is_value else None
        exec(compile(tree, name, "exec", dont_inherit=True), namespace)
        if last is not None:
            expression = ast.Expression(last.value)
            value = eval(compile(expression, name, "eval", dont_inherit=True), namespace)
        shown = None if value is None else repr(value)
        for stream in (sys.stdout, sys.stderr):
            if not getattr(stream, "closed", True):
                stream.flush()  # the code may have put one there that buffers
    except SystemExit as ended:
        status = 0 if ended.code is None else ended.code
        if type(status) is int:
            return None, f"SystemExit: {status}" if status else None, status & 0xFF
        return None, _text_of(ended), 1
    except BaseException as error:
        return None, _text_of(error), 1
    return shown, None, 0


def _text_of(error: BaseException) -> str:
    try:
        without_run = error.__traceback__ and error.__traceback__.tb_next
        return "".join(traceback.format_exception(type(error), error, without_run))
    except BaseException:  # of the code too, such as that of a `__str__`
        return type(error).__name__


def _cut(text: str | None) -> str | None:
    if text is not None and len(text) > _MAX_CHARS:
        half = _MAX_CHARS // 2
        note = f"[the middle of {len(text):,} characters is left out]"
        text = f"{text[:half]}\n{note}\n{text[-half:]}"
    return text and text.encode("utf-8", "backslashreplace").decode()


def _send(descriptor: int, reply: dict[str, Any]) -> None:
    data = dumps(reply).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main(int(sys.argv[1]))
