"""`toolbus` as people run it: processes with an empty home, ended by their process id."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from typer.testing import CliRunner

from support.patience import PATIENCE_S
from toolbus.cli.app import make_app

_SLOW = re.compile(r"^\w+: \S+ has not ended after \S+ s: .* wait for one\n", re.MULTILINE)


def without_warnings_of_slow_work(err: str) -> str:
    """Return stderr as it is on a machine that has time for each thread within seconds."""
    return _SLOW.sub("", err)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        """The JSON value on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The JSON error on stderr."""
        found: dict[str, Any] = json.loads(self.err)
        return found


@dataclass(slots=True)
class Running:
    """A command that has not ended yet."""

    process: subprocess.Popen[str]

    def line(self) -> str:
        """Read the next line of stdout."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self, number: signal.Signals = signal.SIGTERM) -> Outcome:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> Outcome:
        """Wait for the end."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return Outcome(self.process.returncode, out, without_warnings_of_slow_work(err or ""))


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Runs `toolbus` in a folder, with the given variables and no other variables of toolbus."""

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    errors_to: Path | None = None
    """A file that stderr is appended to, for a process that writes more than a pipe holds."""

    def run(self, *arguments: str, **variables: str) -> Outcome:
        """Run a command to its end."""
        with self.start(*arguments, **variables) as running:
            return running.ended()

    def run_here(self, *arguments: str, **variables: str) -> Outcome:
        """Run a command to its end in this process, which saves half a second for an interpreter.

        For the output of a command and how it ends. Signals, terminals, spans and leftovers need a
        process; and each command is run as a process by at least one test.
        """
        wanted = self.environment(variables)
        assert not [name for name in wanted if name.startswith("OTEL_")], "spans are for a process"
        surplus = dict.fromkeys(os.environ.keys() - wanted.keys())
        # A command may leave a handler of Ctrl-C behind, as its process would end with it.
        is_main = threading.current_thread() is threading.main_thread()
        with chdir(self.folder), heard_interrupts() if is_main else nullcontext():
            result = CliRunner().invoke(
                make_app(), arguments, env={**surplus, **wanted}, prog_name="toolbus"
            )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    def value_here(self, *arguments: str) -> Any:
        """Run a command here that must succeed, and read its output as JSON."""
        outcome = self.run_here(*arguments)
        assert outcome.code == 0, outcome.err
        return outcome.value

    @contextmanager
    def start(self, *arguments: str, **variables: str) -> Iterator[Running]:
        """Start a command; what still runs when the block ends is killed."""
        with self.running("-m", "toolbus", *arguments, **variables) as running:
            yield running

    @contextmanager
    def running(self, *arguments: str, **variables: str) -> Iterator[Running]:
        """Start Python with these arguments, as `start` does."""
        with heard_interrupts(), ExitStack() as files:
            file = self.errors_to and files.enter_context(self.errors_to.open("ab"))
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.folder,
                env=self.environment(variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file or subprocess.PIPE,
                text=True,
            )
        with process:
            try:
                yield Running(process)
            finally:
                if process.returncode is None:
                    process.kill()

    @contextmanager
    def serving(self, *arguments: str) -> Iterator[tuple[Running, str]]:
        """Run a development server; yield it and its address."""
        options: Sequence[str] = arguments or ("--dev",)
        with self.start("serve", "--port", "0", "--json", *options) as server:
            yield server, json.loads(server.line())["url"]

    @contextmanager
    def hosting(self, *arguments: str) -> Iterator[Running]:
        """Host toolkits; yield once the first of them can be called."""
        with self.start("host", *arguments) as host:
            line = host.line()
            assert line, host.ended().err
            yield host

    def at(self, url: str) -> CommandLine:
        """Return the same, with a server's address among its variables."""
        return replace(self, variables={**self.variables, "TOOLBUS_URL": url})

    def environment(self, further: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
        """Return the variables that a command sees."""
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TOOLBUS_", "OTEL_"))
        }
        home = {"TOOLBUS_HOME": str(self.folder / "home"), "COLUMNS": "200"}
        return {**clean, **home, **self.variables, **further}


@contextmanager
def heard_interrupts() -> Iterator[None]:
    """Let processes that are started here receive Ctrl-C, which a background process ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


SUM_TOOLS = """
from toolbus import Toolkit, tool

@tool
async def add(a: int, b: int = 1) -> int:
    return a + b

sums = Toolkit("sums", [add])
"""


@contextmanager
def hosted_sums(folder: Path) -> Iterator[CommandLine]:
    """Run a server in a folder, and bob, who hosts the toolkit `sums`."""
    (folder / "sum_tools.py").write_text(SUM_TOOLS, encoding="utf-8")
    here = CommandLine(folder)
    with here.serving() as (_, url):
        there = here.at(url)
        with there.hosting("sum_tools:sums", "--name", "bob"):
            yield there
