"""What a forked child of this process must not inherit: our sockets and our signal handlers.

`multiprocessing` forks by default on Linux until Python 3.14, and libraries fork where they like,
also in the middle of a call. The child has a copy of everything in this process, but only the
thread that forked. Without this module its copy of a websocket keeps the connection open after the
host was killed, so that callers wait for a lost host, and a SIGTERM for the child reaches the event
loop of its parent, which shares the descriptor that signals wake it by.

Children that start another program (`subprocess`, the start methods `spawn` and `forkserver`)
inherit neither, and this module does not concern them.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

__all__ = ["call_in_children", "end_child", "keep_from_children", "keep_handler_from_children"]

# By descriptor. A socket may be closed and its number be used for something else before a fork: the
# identity of the file says whether it is still the one that was noted. So nothing is removed, and
# there are at most as many as this process may have open files.
_sockets: dict[int, tuple[int, int]] = {}
_handlers: dict[int, Any] = {}
"""Our handlers of signals, as `signal.getsignal` returned them."""
_masks: dict[int, Any] = {}
"""The signals that a thread blocked before it began to fork, by the thread."""


def keep_from_children(sock: Any) -> None:
    """Disconnect the copy of a socket that each later child by fork gets.

    Args:
        sock: The socket, or what a transport calls so; None for a transport that has none.
    """
    if sock is None:
        return
    with suppress(OSError, ValueError):  # closed already
        descriptor = sock.fileno()
        _sockets[descriptor] = _identity(descriptor)


def keep_handler_from_children(number: int) -> None:
    """Give a signal its default handler in later children, while the present one is in use.

    Args:
        number: The signal, right after our handler was installed, also by an event loop.
    """
    _handlers[number] = signal.getsignal(number)


def call_in_children(method: Callable[[], None]) -> None:
    """Call a method in each later child, right after the fork, while its object exists.

    Methods are called in the order of these calls. No lock of this process may be taken in them
    that another thread could have held at the fork.
    """
    if not hasattr(os, "register_at_fork"):  # Windows
        return
    weak = weakref.WeakMethod(method)

    def call() -> None:
        alive = weak()
        if alive is not None:
            alive()

    os.register_at_fork(after_in_child=call)


def end_child(error: BaseException) -> NoReturn:
    """End a forked child as an exception that nothing handles ends a program."""
    code: object = error.code if isinstance(error, SystemExit) else 1
    status = code if isinstance(code, int) else int(code is not None)
    try:
        if not isinstance(error, SystemExit):
            traceback.print_exception(error)
        elif not isinstance(code, int | None):
            sys.stderr.write(f"{code}\n")
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(status & 0xFF)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _before_fork() -> None:
    # A child that is terminated at once would run our handler, which it has until it is reset, and
    # then live on. So its signals wait for that.
    if _handlers:
        _masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, _handlers)


def _in_parent() -> None:
    mask = _masks.pop(threading.get_ident(), None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    mask = _masks.get(threading.get_ident())
    _masks.clear()
    _reset_signals()
    _disconnect_sockets()
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _reset_signals() -> None:
    ours = [number for number, handler in _handlers.items() if signal.getsignal(number) == handler]
    _handlers.clear()
    if not ours:
        return
    with suppress(ValueError):  # not the main thread of the main interpreter
        # A signal's number would be written to a socket whose other end the parent's loop reads.
        signal.set_wakeup_fd(-1)
        for number in ours:
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)


def _disconnect_sockets() -> None:
    """Put a socket without a peer in the place of each of ours.

    Not just closed: objects of the parent's event loop exist in the child and still use the number,
    which would be that of the next file that the child opens. Nothing is sent: neither TLS nor a
    websocket closes, and the parent's connection stays as it is.
    """
    noted = dict(_sockets)
    _sockets.clear()
    if not noted:
        return
    dead, other = socket.socketpair()
    other.close()
    with dead:
        for descriptor, identity in noted.items():
            with suppress(OSError):  # closed before the fork
                if _identity(descriptor) == identity:
                    os.dup2(dead.fileno(), descriptor, inheritable=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
