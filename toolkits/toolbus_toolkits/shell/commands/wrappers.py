"""Commands that run another command, and what they run: `env`, `xargs`, `sudo`, `sh -c`.

What a wrapper runs is `Effect.runs`. Where its options are not understood, the command may begin at
any of its words: then `runs` has one for each of them, so that a deny rule finds it.

Source: the manual pages of GNU coreutils 9.1, findutils 4.9, util-linux 2.38, bash 5.2, procps 4.0,
sudo 1.9, OpenDoas 6.8, GNU time 1.9, OpenSSH 9.2, dash 0.5.12 and strace 6.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from posixpath import normpath

from toolbus_toolkits.shell.commands.table import (
    Arguments,
    Command,
    Effect,
    command_of,
    row_effect,
    starts,
    unknown_command,
)
from toolbus_toolkits.shell.reading import Assignment, SimpleCommand, Word, read_line

__all__ = ["ROWS", "SPECIAL", "run_text", "tails"]

_MAX_TAILS = 40
"""So many words of a wrapper that is not understood are taken as a command; with more of them, one
that is not known stands for all."""

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_IN_LINE = re.compile(r"[\s;&|]")
"""What a word has that is a line with more than one word, or more than one command."""
_TEXT_OPTIONS = ("-c", "--command")
"""Options of wrappers that are followed by a line, also by one of a single word."""


def tails(command: SimpleCommand, start: int = 1) -> tuple[SimpleCommand, ...]:
    """Return every command that a wrapper may run, if it may begin at any word from one on."""
    begins = [
        position
        for position, word in enumerate(command.words[start:], start)
        if not word.known.startswith("-")
    ]
    if len(begins) > _MAX_TAILS:
        return (unknown_command(command.source),)
    found = tuple(_from(command, position) for position in begins)
    if command.takes_more:  # `xargs env --frob`: the words that are added may be the command
        return (*found, unknown_command(command.source))
    return found


def run_text(text: str, source: str) -> tuple[tuple[SimpleCommand, ...], str]:
    """Return the commands of a text that bash runs, and why it cannot be read, if so."""
    # The variables that the text starts with are not known here: it may have got others.
    reading = read_line(text, {})
    if reading.faults:
        return (*reading.commands, unknown_command(source)), "; ".join(reading.faults)
    return reading.commands, ""


def _from(command: SimpleCommand, position: int) -> SimpleCommand:
    return command_of(command, command.words[position:])


def _with_assignments(command: SimpleCommand) -> SimpleCommand:
    """Take `NAME=value` words before the name of a command as assignments."""
    assignments: list[Assignment] = []
    for word in command.words:
        text = word.known
        match = _ASSIGNMENT.match(text)
        if match is None:
            break
        value = replace(word, prefix="")
        if word.value is not None:
            value = replace(word, value=text[match.end() :])
        assignments.append(Assignment(match[1], value))
    return replace(command, words=command.words[len(assignments) :], assignments=tuple(assignments))


def _runs_operands(arguments: Arguments) -> Effect:
    """Run the words behind the options, and behind `leading` other words."""
    command = arguments.command
    start = arguments.first_operand + arguments.row.leading
    leading = command.words[arguments.first_operand : start]
    is_split = any(word.value is None and word.is_split for word in leading)
    if arguments.fault or is_split:
        # The `"$X"` of `timeout "$X" npm test` is one word, and no command.
        runs = tails(command, 1 if is_split else start)
        return Effect(why=f"`{arguments.row.name}` is not understood", runs=runs)
    inner = _with_assignments(_from(command, start))
    if inner.words and "=" in inner.words[0].source:
        # env sets variables of any name: `BASH_FUNC_ls%%=...` is a function of bash.
        return Effect(why=f"`{inner.words[0].source}` is not understood", runs=tails(command))
    if not inner.words and not inner.assignments and not inner.takes_more:
        return Effect(read_only=True, reads=(), is_transparent=True)
    if not inner.words and inner.takes_more:
        inner = unknown_command(command.source)
    return Effect(
        read_only=True,
        reads=arguments.values(arguments.row.files),
        runs=(inner,),
        is_transparent=True,
    )


def _runs_as_other(arguments: Arguments, why: str) -> Effect:
    inner = _runs_operands(arguments)
    return replace(inner, read_only=False, why=why, reads=None, is_transparent=False)


def _sudo(arguments: Arguments) -> Effect:
    why = "it runs a command as another user"
    if not arguments.has("-s --shell -i --login"):
        return _runs_as_other(arguments, why)
    runs = _texts_and_tails(arguments.command)
    if arguments.operands:
        return Effect(why=why, runs=runs)
    immune = "it runs a shell as another user, which runs what it reads"
    return Effect(why=why, immune=immune, runs=runs, reads_lines=True)


def _chroot(arguments: Arguments) -> Effect:
    effect = _runs_as_other(arguments, "it runs a command in another root folder")
    return replace(effect, reads_lines=len(arguments.operands) < 2)


def _env(arguments: Arguments) -> Effect:
    effect = _runs_operands(arguments)
    # To take a variable away is a change as another value is: one of them keeps git from writing.
    unset = tuple(Assignment(word.known, Word("", "")) for word in arguments.values("-u --unset"))
    if unset and effect.runs:
        inner = effect.runs[0]
        changed = replace(inner, assignments=(*unset, *inner.assignments))
        effect = replace(effect, runs=(changed, *effect.runs[1:]))
    for directory in arguments.values("-C --chdir"):
        effect = replace(effect, directory=directory)
    return effect


def _env_split(command: SimpleCommand) -> Effect:
    """`env -S TEXT` makes words of TEXT, with `$NAME` and escapes of its own."""
    effect = row_effect(_ENV, command)
    texts = [word.value or word.prefix for word in command.words]
    if not effect.read_only and any("S" in text or text.startswith("--s") for text in texts):
        return replace(effect, runs=(*tails(command), unknown_command(command.source)))
    return effect


def _command(arguments: Arguments) -> Effect:
    if arguments.has("-v -V"):
        return Effect(read_only=True, reads=())
    return _runs_operands(arguments)


def _xargs(arguments: Arguments) -> Effect:
    if arguments.fault:
        return Effect(why=arguments.fault, runs=tails(replace(arguments.command, takes_more=True)))
    command = arguments.command
    inner = _from(replace(command, takes_more=True), arguments.first_operand)
    if not inner.words:
        inner = replace(inner, words=(Word("echo", "echo"),))
    replaced = _replaced(arguments)
    if replaced is not None:
        words = tuple(_with_input(word, replaced) for word in inner.words)
        inner = replace(inner, words=words, takes_more=command.takes_more)
    return Effect(
        read_only=True,
        reads=arguments.values("-a --arg-file"),
        runs=(inner,),
        is_transparent=True,
    )


def _replaced(arguments: Arguments) -> str | None:
    """Return the text that xargs replaces in its words; empty if that is not known."""
    found: str | None = None
    for name, value in arguments.options:
        if name in ("-i", "--replace") and value is None:
            found = "{}"
        elif name in ("-I", "-i", "--replace"):
            found = (value and value.value) or ""
    return found


def _with_input(word: Word, replaced: str) -> Word:
    if word.value is None or not replaced:
        # Where the text is not known, it may stand anywhere.
        return replace(word, value=None, prefix="")
    before, found, _ = word.value.partition(replaced)
    return replace(word, value=None, prefix=before) if found else word


def _watch(arguments: Arguments) -> Effect:
    if arguments.fault or arguments.has("-x --exec"):
        return _runs_operands(arguments)
    return _joined(arguments.command, arguments.operands, "watch", is_bash=False)


def _joined(
    command: SimpleCommand, words: Sequence[Word], name: str, *, is_bash: bool = True
) -> Effect:
    """Run words that are joined with spaces and read again, as those of eval."""
    texts = [word.value for word in words if word.value is not None and not word.is_pattern]
    if len(texts) < len(words) or command.takes_more:
        why = f"`{name}` runs code that is known only when the line runs"
        return Effect(why=why, immune=why, runs=(unknown_command(command.source), *tails(command)))
    text = " ".join(texts)
    commands, fault = run_text(text, command.source)
    why = fault
    if not is_bash and (any(mark in text for mark in _NOT_SH) or _LONG_DESCRIPTOR.search(text)):
        why = fault or f"`{name}` may read its text in another way than bash"
    return Effect(
        read_only=not why,
        why=why,
        immune=fault,
        reads=(),
        runs=commands,
        is_transparent=not why,
    )


def _eval(command: SimpleCommand) -> Effect:
    words = command.words[1:]
    if words and words[0].value == "--":
        words = words[1:]
    return _joined(command, words, "eval")


def _trap(arguments: Arguments) -> Effect:
    words = arguments.operands
    # `trap SIGNAL` and `trap - SIGNAL` set the signal back; with `-p` and `-l` it only shows.
    is_reset = not words or words[0].value in ("", "-") or (words[0].value or "").isdecimal()
    if arguments.has("-l -p") or is_reset or (len(words) == 1 and words[0].value is not None):
        return Effect(read_only=True, reads=())
    return _joined(arguments.command, words[:1], "trap")


_NOT_SH = (
    *("$'", '$"', "&>", "|&", "((", "[[", "<<", "<(", ">(", "{", "=~", ";&", "function"),
    *("export", "readonly", "local"),
)
"""What bash reads in another way than another shell of POSIX: `ls &> f` runs `ls` and empties f."""
_LONG_DESCRIPTOR = re.compile(r"[0-9]{2}[<>]")
"""A word for dash, and then a redirection: `uniq a 10>/dev/null` writes the file `10`."""

_PROCESS = r"proc/(?:self|thread-self|[0-9]+)(?:/task/[0-9]+)?"
_INPUT = re.compile(rf"-|/dev/stdin|/(?:dev|{_PROCESS})/fd/[0-9]+")
"""What names no script, but what a shell reads: `curl ... | sh -`."""
_STANDARD_INPUT = re.compile(rf"-|/dev/stdin|/(?:dev|{_PROCESS})/fd/0")
_INPUT_NAME = re.compile(r"stdin|[0-9]+")

_LINES_OPTIONS = frozenset("--rcfile --init-file --emulate --debugger".split())
"""Long options of shells whose value is the next word."""

_SHELL = starts(
    "bash, sh, dash, ash",
    "-c -e -u -x -v -n -f -C -s --norc --noprofile --posix --verbose --help --version",
    asks={
        "-l --login": "runs the profile",
        "-i": "runs the start file",
        "--rcfile --init-file": "runs a file",
    },
    plus="is an option that is not known",
    effect=lambda arguments: _shell(arguments),
)


def _shell(arguments: Arguments) -> Effect:
    name = arguments.row.name
    command = arguments.command
    words = arguments.operands
    if arguments.has("--help --version"):
        return Effect(read_only=True, reads=())
    reads_lines = _reads_lines(command)
    why = f"`{name}` runs what it reads"
    for script in command.words[1:2]:
        if script.value is None and not script.prefix and not _may_be_input(script):
            return Effect(why=why, immune=f"`{name}` runs a script that is known only when it runs")
    if arguments.fault and reads_lines:
        runs = _unknown_script(command)
        return Effect(why=arguments.fault, immune=why, runs=runs, reads_lines=True)
    if arguments.fault:
        # The text of `-c` may be any word.
        return Effect(why=arguments.fault, runs=_texts_and_tails(command))
    if arguments.has("-c") and words:
        inner = replace(command, takes_more=False)
        return _joined(inner, words[:1], f"{name} -c", is_bash=name == "bash")
    if command.takes_more:
        return Effect(why=why, immune=why, runs=(unknown_command(command.source),))
    if reads_lines:
        return Effect(why=why, immune=why, runs=_unknown_script(command), reads_lines=True)
    return Effect(why=f"`{name}` runs a script")


def _reads_lines(command: SimpleCommand) -> bool:
    """Whether a shell gets no script and no text, or may get none, so that it runs its input."""
    letters = ""
    words = list(command.words[1:])
    while words and words[0].known[:1] in ("-", "+") and words[0].value not in ("-", "--"):
        option = words.pop(0).known
        if option.startswith("--"):
            taken = int(option in _LINES_OPTIONS)
        else:
            if option[0] == "-":
                letters += option[1:]
            # `-o pipefail`, `+O extglob`: each of these letters has a word of its own.
            taken = sum(letter in "oO" for letter in option)
        del words[:taken]
    if words and words[0].value in ("-", "--"):
        del words[0]
    if "c" in letters and words:
        return False
    if "s" in letters or not words:
        return True
    return _may_be_input(words[0])


def _may_be_input(word: Word) -> bool:
    """Whether a word may name no file, but what a shell reads: `"$X"`, and not `"$X/run.sh"`."""
    if word.value is not None:
        return _names_input(word.value)
    _, slash, name = word.suffix.rpartition("/")
    return not slash or word.is_split or _INPUT_NAME.fullmatch(name) is not None


def _names_input(text: str, names: re.Pattern[str] = _INPUT) -> bool:
    return names.fullmatch(re.sub("^//+", "/", normpath(text))) is not None


def _unknown_script(command: SimpleCommand) -> tuple[SimpleCommand, ...]:
    """Return what a shell runs that reads no file and not its input: `bash <(x)`."""
    for word in command.words[1:]:
        is_input = word.value is not None and _names_input(word.value, _STANDARD_INPUT)
        if not is_input and (word.value is None or _names_input(word.value)):
            return (unknown_command(command.source),)
    return ()


def _texts_and_tails(command: SimpleCommand) -> tuple[SimpleCommand, ...]:
    texts = [
        word
        for before, word in pairwise(command.words)
        if word.value is None or _IN_LINE.search(word.value) or before.value in _TEXT_OPTIONS
    ]
    runs = list(tails(command))
    for word in texts[:_MAX_TAILS]:
        if word.value is None:
            runs.append(unknown_command(word.source))
        else:
            runs.extend(run_text(word.value, word.source)[0])
    if len(texts) > _MAX_TAILS or command.takes_more:
        runs.append(unknown_command(command.source))
    return tuple(runs)


def _other_shell(command: SimpleCommand) -> Effect:
    why = f"`{command.words[0].source}` runs code of a language that is not read"
    if command.takes_more or any(word.value is None for word in command.words[1:]):
        return Effect(why=why, immune=why, runs=(unknown_command(command.source),))
    runs = _texts_and_tails(command)
    if _reads_lines(command):
        return Effect(why=why, immune=why, runs=runs + _unknown_script(command), reads_lines=True)
    return Effect(why=why, runs=runs)


def _unread(command: SimpleCommand) -> Effect:
    """Look at every word of a wrapper whose options are not described."""
    return Effect(why="it runs other commands", runs=_texts_and_tails(command))


def _unread_or_shell(command: SimpleCommand) -> Effect:
    """Do the same for one that starts a shell where its words name no command: `su`, `script`."""
    has_text = any((word.value or "").startswith(_TEXT_OPTIONS) for word in command.words[1:])
    return replace(_unread(command), reads_lines=not has_text)


def _ssh(arguments: Arguments) -> Effect:
    """Join the words behind the host, which the shell of the other machine reads as one line."""
    command = arguments.command
    why = "it runs commands on another machine, and programs that its options name"
    names_program = arguments.has("-o")  # such as ProxyCommand
    words = [word.value for word in arguments.operands[1:]]
    reads_lines = not words and not arguments.has("-N -V -G -Q -O -W")
    remote: tuple[SimpleCommand, ...] = ()
    if None in words or command.takes_more:
        remote = (unknown_command(command.source),)
    elif words:
        line = " ".join(word for word in words if word is not None)
        remote, _ = run_text(line, line)
    return Effect(why=why, same=remote, reads_lines=reads_lines, runs_words=names_program)


def _parallel(command: SimpleCommand) -> Effect:
    # It makes command lines of its input, which bash reads again.
    why = "`parallel` runs commands that are known only when the line runs"
    return Effect(why=why, immune=why, runs=(unknown_command(command.source), *tails(command)))


def _source_file(command: SimpleCommand) -> Effect:
    words = command.words[1:]
    why = "it runs the commands of a file"
    immune = "it runs the commands of a file that is known only when the line runs"
    if any(word.is_pattern or _may_be_input(word) for word in words[:1]):
        return Effect(why=why, immune=immune, runs=(unknown_command(command.source),))
    if words and words[0].value is None:
        return Effect(why=why, immune=immune)
    return Effect(why=why, reads=words)


_ENV = starts(
    "env",
    "-0 --null --list-signal-handling -v --debug --help --version",
    valued="-u --unset -C --chdir",
    optional="--block-signal --default-signal --ignore-signal",
    asks={
        "-S --split-string": "makes words of a text",
        "-i --ignore-environment": "takes away what keeps commands from writing",
    },
    effect=_env,
)

ROWS: tuple[Command, ...] = (
    _ENV,
    starts(
        "xargs",
        "-0 --null -o --open-tty -p --interactive -r --no-run-if-empty --show-limits -t --verbose"
        " -x --exit --help --version",
        valued="-d --delimiter -E -I -L --max-lines -n --max-args -P --max-procs -s --max-chars",
        files="-a --arg-file",
        optional="-e --eof -i --replace -l",
        asks={"--process-slot-var": "sets a variable of what it runs"},
        effect=_xargs,
    ),
    starts(
        "nice", "--help --version", valued="-n --adjustment", digits=True, effect=_runs_operands
    ),
    starts(
        "ionice",
        "-t --ignore -h --help -V --version",
        valued="-c --class -n --classdata",
        asks={"-p --pid -P --pgid -u --uid": "changes a process"},
        effect=_runs_operands,
    ),
    starts(
        # As a word of bash it has only `-p`.
        "time",
        "-p --portability -q --quiet -v --verbose",
        valued="-f --format",
        asks={"-o --output -a --append": "writes a file"},
        effect=_runs_operands,
    ),
    starts(
        "timeout",
        "--preserve-status --foreground -v --verbose --help --version",
        valued="-k --kill-after -s --signal",
        leading=1,
        effect=_runs_operands,
    ),
    starts(
        # It writes nohup.out only where its output is a terminal; here it is none.
        "nohup",
        "--help --version",
        effect=_runs_operands,
    ),
    starts(
        "stdbuf",
        "--help --version",
        valued="-i --input -o --output -e --error",
        effect=_runs_operands,
    ),
    starts(
        "setsid",
        "-f --fork -w --wait -h --help -V --version",
        asks={"-c --ctty": "takes the terminal"},
        effect=_runs_operands,
    ),
    starts("command", "-p -v -V", effect=_command),
    starts("builtin", effect=_runs_operands),
    starts(
        "exec",
        asks={
            "-c": "takes away what keeps commands from writing",
            "-a -l": "starts a program under another name, which may do something else",
        },
        effect=_runs_operands,
    ),
    starts("trap", "-l -p", effect=_trap),
    starts(
        "sudo, doas",
        "-n --non-interactive -S --stdin -E --preserve-env -H --set-home -b --background -k"
        " --reset-timestamp -A --askpass -P --preserve-groups -B --bell",
        valued="-u --user -g --group -p --prompt -C --close-from -h --host -T --command-timeout"
        " -r --role -t --type",
        asks={
            "-e --edit": "edits files",
            "-s --shell -i --login": "runs a shell",
            "-D --chdir -R --chroot": "runs in another folder",
        },
        effect=_sudo,
    ),
    starts(
        "chroot",
        "--skip-chdir --help --version",
        valued="--groups --userspec",
        leading=1,
        effect=_chroot,
    ),
    starts(
        "watch",
        "-b --beep -c --color -e --errexit -g --chgexit -p --precise -t --no-title -w --no-wrap -x"
        " --exec -h --help -v --version",
        valued="-q --equexit -n --interval",
        optional="-d --differences",
        effect=_watch,
    ),
    starts(
        "ssh",
        "-4 -6 -A -a -C -f -G -g -K -k -M -N -n -q -s -T -t -V -v -X -x -Y -y",
        valued="-B -b -c -D -E -e -F -I -i -J -L -l -m -O -o -P -p -Q -R -S -W -w",
        effect=_ssh,
    ),
    _SHELL,
)

SPECIAL: Mapping[str, Callable[[SimpleCommand], Effect]] = {
    "env": _env_split,
    "eval": _eval,
    "., source": _source_file,
    "parallel": _parallel,
    "zsh, ksh, mksh, fish, csh, tcsh, rbash, pwsh": _other_shell,
    "flock, strace, ltrace, busybox, toybox, taskset, chrt, numactl, prlimit, systemd-run,"
    " expect, unbuffer, entr, xvfb-run, valgrind, gdb, perf, start-stop-daemon, run-parts,"
    " caffeinate, hyperfine, coproc, catchsegv, dbus-run-session, ld.so, chpst, cpulimit,"
    " rlwrap, socat, ssh-agent, logsave, sem, chronic, ifne, ts": _unread,
    "su, runuser, pkexec, setpriv, sg, newgrp, script, unshare, nsenter, fakeroot, proot,"
    " bwrap, firejail, setarch, linux64, linux32, tmux, screen, schroot, systemd-nspawn,"
    " machinectl, toolbox, distrobox": _unread_or_shell,
}
