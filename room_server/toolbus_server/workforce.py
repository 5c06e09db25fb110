"""Many servers behind one address: starts the workers, starts anew who dies, ends them all.

The parent of `toolbus serve --workers N`. It holds the sockets and reads the keys, and no room. It
has no event loop and no thread, so that it may fork at any time: a worker that died is replaced
within milliseconds, by a copy of a process that has loaded everything. What one worker does is
`worker`'s matter, which socket is whose that of `listeners`.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, NoReturn

from toolbus.errors import Unavailable
from toolbus_server import worker
from toolbus_server.key_watch import LOOK_EVERY_S, KeyFiles, say_trusted
from toolbus_server.listeners import Listeners
from toolbus_server.nodes.node_name import NameTaken
from toolbus_server.one_voice import OneVoice, Said
from toolbus_server.settings import ServerSettings
from toolbus_server.worker_line import ParentEnd

__all__ = ["NoWorkers", "Workforce"]

_LONG_S = 10.0
"""Who has lived for so long is replaced at once; after a shorter life there is a pause."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 15.0
_SHORT_PAUSE_S = 1.0
"""For so long connections may wait for the next worker; for longer ones they go to others."""
_ATTEMPTS = 3
"""So many in a row that end before they serve, while none serves, mean that none ever will."""
_SPARE_S = 15.0
"""What a worker may take to end beyond the time that calls have."""
_STANDS_STILL_S = 10.0
"""A worker that takes nothing of what waits for it for so long is given up."""
_TO_STOP = frozenset({signal.SIGTERM, signal.SIGINT})
_logger = logging.getLogger(__name__)


class NoWorkers(Unavailable):
    """Workers end before they serve, again and again."""

    next_step = "what the workers wrote stands above"
    """Said in place of the general next step."""


@dataclass(slots=True)
class _Place:
    """One worker's place: who works there, and how it went."""

    number: int
    pid: int = 0
    """The process; 0 while there is none."""
    line: ParentEnd | None = None
    is_ready: bool = False
    began_s: float = 0.0
    short_lives: int = 0
    due_s: float = 0.0
    """When the next one is to be started, where there is none."""


@dataclass(slots=True)
class Workforce:
    """Runs workers until it is told to stop; `run` is all of its work.

    Args:
        settings: Of every worker; `node` is what they are called, each with its number behind it.
        listeners: Where they listen.
        count: How many there are.
        key_files: Where the keys in the settings come from.
        on_ready: Called once, when each worker serves, or has been tried.
        asks_for_keys: Whether SIGHUP means that the keys are to be read; else that the terminal
            is gone, which ends this process, and with it the workers.
        work: What a worker does, in its process; returns the exit code.
    """

    settings: ServerSettings
    listeners: Listeners
    count: int
    key_files: KeyFiles
    on_ready: Callable[[], None]
    asks_for_keys: bool = False
    work: Callable[[worker.Post], int] = worker.work
    _places: list[_Place] = field(init=False)
    _selector: selectors.BaseSelector = field(init=False)
    _bell: socket.socket = field(init=False)
    _voice: OneVoice = field(init=False, default_factory=OneVoice)
    _refusal: NameTaken | None = field(init=False, default=None)
    _failures: int = field(init=False, default=0)
    _is_told: bool = field(init=False, default=False)
    _looked_s: float = field(init=False, default=0.0)
    _end_by_s: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._places = [_Place(number) for number in range(1, self.count + 1)]

    def run(self) -> None:
        """Work until SIGTERM or SIGINT, then until all workers have ended.

        A second signal ends them at once, and this process by that signal.

        Raises:
            NoWorkers: None of them can be started.
            NameTaken: At the start another node, which lives, has the name of one of them.
            KeyboardInterrupt: A second SIGINT came.
        """
        self._selector = selectors.DefaultSelector()
        try:
            with self._signals_heard():
                while not self._is_over():
                    self._start_due()
                    self._wait()
            if self._refusal is not None:
                raise self._refusal
        finally:
            self._kill_all()
            self._voice.tell_all()
            self.listeners.close_all_but(None)
            self._selector.close()

    def _is_over(self) -> bool:
        return self._end_by_s is not None and not any(place.pid for place in self._places)

    def _name(self, place: _Place) -> str:
        return f"{self.settings.node}-{place.number}"

    # What happens

    def _wait(self) -> None:
        """Wait until something happens, and deal with it."""
        for key, _ in self._selector.select(self._patience_s()):
            if key.fileobj is self._bell:
                for number in self._bell.recv(4096):
                    self._on_signal(signal.Signals(number))
            else:
                self._hear(key.data)
                self._send_rest(key.data)
        for place in self._places:
            self._see_after(place)
        self._look_at_keys(is_asked=False)
        self._tell_ready()
        self._voice.tell_due(time.monotonic())
        if self._end_by_s is not None and time.monotonic() > self._end_by_s:
            _logger.error("workers that do not end are killed")
            self._kill_all()

    def _patience_s(self) -> float:
        if self._end_by_s is not None:
            dues = [self._end_by_s]
        else:
            dues = [place.due_s for place in self._places if not place.pid]
            dues.append(self._looked_s + LOOK_EVERY_S)
        soonest_s = min(*dues, self._voice.due_s()) - time.monotonic()
        return max(0.0, min(LOOK_EVERY_S, soonest_s))

    def _on_signal(self, number: signal.Signals) -> None:
        if number in _TO_STOP:
            if self._end_by_s is not None:
                self._end_at_once(number)
            self._end_well()
        elif number == getattr(signal, "SIGHUP", None):
            self._look_at_keys(is_asked=True)

    def _end_well(self) -> None:
        self._end_by_s = time.monotonic() + self.settings.drain_s + _SPARE_S
        # The workers have theirs: when they close them nobody is let in any more.
        self.listeners.close_all_but(None)
        for place in self._places:
            self._tell(place, {"drain": True})

    def _end_at_once(self, number: signal.Signals) -> None:
        self._kill_all()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    def _look_at_keys(self, *, is_asked: bool) -> None:
        now = time.monotonic()
        if self._end_by_s is not None or not (is_asked or now >= self._looked_s + LOOK_EVERY_S):
            return
        self._looked_s = now
        keys = self.key_files.look(is_asked=is_asked)
        if keys is not None:
            self.settings = replace(self.settings, keys=keys)
            for place in self._places:
                self._tell(place, {"keys": keys.to_toml()})
            say_trusted(keys)

    def _tell(self, place: _Place, message: dict[str, Any]) -> None:
        if place.line is not None:
            place.line.tell(message)
            self._send_rest(place)

    def _send_rest(self, place: _Place) -> None:
        """Send what the worker had no room for, now or when it has."""
        if place.line is None or place.line.has_ended:
            return
        place.line.send()
        wanted = selectors.EVENT_WRITE if place.line.has_unsent else 0
        self._selector.modify(place.line, selectors.EVENT_READ | wanted, place)

    def _hear(self, place: _Place) -> None:
        if place.line is None:
            return
        for message in place.line.hear():
            self._obey(place, message)
        if place.line is not None and place.line.has_ended:
            with suppress(KeyError):
                self._selector.unregister(place.line)

    def _obey(self, place: _Place, message: dict[str, Any]) -> None:
        """Do what a worker asks for."""
        if "ready" in message:
            place.is_ready = True
            self._failures = 0
        elif "leaving" in message:
            self.listeners.close(place.number)
        elif "refused" in message:
            self._on_refusal(place, message["refused"])
        elif "said" in message:
            self._voice.take(self._name(place), Said(*message["said"]), time.monotonic())
        elif "ask" in message:
            others = [each for each in self._places if each.is_ready and each is not place]
            self._tell(place, {"expect": [message["ask"], len(others)]})
            for each in others:
                self._tell(each, {"asked": [place.number, message["ask"]]})
        elif "tell" in message:
            number, ask, numbers = message["tell"]
            told = {"told": [ask, self._name(place), numbers]}
            self._tell(self._places[number - 1], told)

    def _on_refusal(self, place: _Place, words: str) -> None:
        """End where a name is another's from the start; later the others go on without that one."""
        if self._is_told:
            _logger.error("worker %s cannot be started: %s", self._name(place), words)
        elif self._end_by_s is None:
            self._refusal = NameTaken(words)
            self._end_well()

    def _tell_ready(self) -> None:
        tried = all(place.is_ready or place.short_lives for place in self._places)
        if not self._is_told and tried and any(place.is_ready for place in self._places):
            self._is_told = True
            self.on_ready()

    # Who comes and goes

    def _start_due(self) -> None:
        if self._end_by_s is not None:
            return
        for place in self._places:
            if not place.pid and time.monotonic() >= place.due_s:
                try:
                    self._start(place)
                except OSError as error:
                    _logger.error("worker %s cannot be started: %s", self._name(place), error)
                    place.began_s = time.monotonic()
                    self._note_end(place)

    def _start(self, place: _Place) -> None:
        listener = self.listeners.open(place.number)
        ours, theirs = socket.socketpair()
        signals = (*_TO_STOP, signal.SIGCHLD, signal.SIGHUP)
        # Until the worker has its own ways, what it is sent would come to its parent.
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            pid = os.fork()
            if not pid:
                ours.close()
                self._work(place, worker.Post(self.settings, place.number, listener, theirs))
        except OSError:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            theirs.close()
        place.pid, place.line, place.is_ready = pid, ParentEnd(ours), False
        place.began_s = time.monotonic()
        self._selector.register(place.line, selectors.EVENT_READ, place)

    def _work(self, place: _Place, post: worker.Post) -> NoReturn:
        """Be a worker, in a process of its own that ends with this."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # Of a terminal these come to all of its processes; the parent says what they mean.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            self._selector.close()
            self._bell.close()
            self.listeners.close_all_but(place.number)
            for other in self._places:
                if other.line is not None:
                    other.line.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            code = self.work(post)
        except BaseException:
            _logger.exception("worker %s met a bug", self._name(place))
        finally:
            os._exit(code)

    def _see_after(self, place: _Place) -> None:
        """Find out whether a worker has ended, and what follows from that."""
        if not place.pid:
            return
        pid, status = os.waitpid(place.pid, os.WNOHANG)
        if not pid:
            if place.line is not None and place.line.waits_s() > _STANDS_STILL_S:
                # What it would go on with counts no more, as keys that were taken away.
                _logger.error("worker %s stands still: it is killed", self._name(place))
                place.line.drop()
                os.kill(place.pid, signal.SIGKILL)
            return
        self._hear(place)
        self._part_with(place)
        how = _how(os.waitstatus_to_exitcode(status))
        if self._end_by_s is None:
            self._note_end(place)
            pause_s = max(0.0, place.due_s - time.monotonic())
            words = "worker %s, pid %d, ended %s: the next one is started in %.1f s"
            _logger.warning(words, self._name(place), pid, how, pause_s)
        elif status and self._refusal is None:
            _logger.warning("worker %s, pid %d, ended %s", self._name(place), pid, how)

    def _part_with(self, place: _Place) -> None:
        assert place.line is not None
        with suppress(KeyError):
            self._selector.unregister(place.line)
        place.line.close()
        place.pid, place.line = 0, None

    def _note_end(self, place: _Place) -> None:
        """Settle when the next one is started. Raises NoWorkers where none will ever serve."""
        now = time.monotonic()
        if not place.is_ready:
            self._failures += 1
        place.is_ready = False
        place.short_lives = place.short_lives + 1 if now - place.began_s < _LONG_S else 0
        pause_s = _FIRST_PAUSE_S * 2 ** (place.short_lives - 1) if place.short_lives else 0.0
        place.due_s = now + min(pause_s, _LONGEST_PAUSE_S)
        if pause_s > _SHORT_PAUSE_S:
            self.listeners.close(place.number)
        if self._failures >= _ATTEMPTS and not any(each.is_ready for each in self._places):
            raise NoWorkers(f"none of {self.count} workers can be started", executed="no")

    def _kill_all(self) -> None:
        for place in self._places:
            if place.pid:
                with suppress(ProcessLookupError):
                    os.kill(place.pid, signal.SIGKILL)
                os.waitpid(place.pid, 0)
                self._part_with(place)

    @contextmanager
    def _signals_heard(self) -> Iterator[None]:
        """Have signals ring the bell for as long as the block runs, and do nothing else."""
        self._bell, rings = socket.socketpair()
        self._bell.setblocking(False)
        rings.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ)
        heard = [*_TO_STOP, signal.SIGCHLD, *([signal.SIGHUP] if self.asks_for_keys else [])]
        before = {number: signal.signal(number, _do_nothing) for number in heard}
        old_bell = signal.set_wakeup_fd(rings.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_bell)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.unregister(self._bell)
            self._bell.close()
            rings.close()


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Be a handler, so that the signal rings the bell."""


def _how(code: int) -> str:
    return f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
