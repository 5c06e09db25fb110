"""What lasts between the commands of a caller with `Shell(keep=True)`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from toolbus import Assessment, Participant, ToolContext, ToolFailed
from toolbus_toolkits.shell import Shell

ANN = ToolContext(caller=Participant(id="1", name="ann"))
BEN = ToolContext(caller=Participant(id="2", name="ben"))


class _KeepingShell:
    """A shell that keeps its state, and the results of its commands."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.toolkit = Shell(workdir, keep=True)

    async def run(self, command: str, context: ToolContext = ANN, **options: Any) -> Any:
        arguments = {"command": command, **options}
        result: Any = (await self.toolkit.execute(context, "run", arguments)).value
        return result

    async def out(self, command: str, context: ToolContext = ANN) -> str:
        out: str = (await self.run(command, context))["stdout"]
        return out

    async def assess(self, command: str, context: ToolContext = ANN) -> Assessment:
        return await self.toolkit.assess(context, "run", {"command": command}, ["ls:*"])


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _KeepingShell:
    monkeypatch.setenv("LANG", "C.UTF-8")
    (tmp_path / "sub").mkdir()
    return _KeepingShell(tmp_path)


LOOK = 'echo "${PWD##*/}" "$MODE" "$LANG"'


@pytest.mark.parametrize(
    ("command", "seen"),
    [
        ("cd sub; export MODE='a\nb=c'; unset LANG; exit 3", "sub a b=c"),
        ("cd sub; MODE=x; (cd ..; export MODE)", "sub C.UTF-8"),
        ("cd sub; cd nowhere; export MODE=a; (exit 1", None),  # not even read
        ("cd sub; export MODE=a; exec true", None),
        ("cd sub; export MODE=a; mkdir gone; cd gone; rmdir ../gone", None),
        ("cd sub; rm $(trap -p EXIT | grep -o '/[^ ]*toolbus-shell-[a-z0-9_]*'); exec true", None),
        ("cd sub; export MODE=a; set -o noclobber -o posix -o xtrace", "sub a C.UTF-8"),
        ("cd sub; export MODE=a; BASH_XTRACEFD=1; set -x", None),
        ("cd sub; export MODE=a; kill -9 $$", None),
        ("cd sub; export MODE=a; trap 'echo' EXIT", "sub a C.UTF-8"),
        ("cd sub; export MODE=a; trap 'echo' EXIT ERR; set -e; f-1.2() { false; }; f-1.2", None),
        ("cd sub; export MODE=a; trap 'echo' ERR; IFS=1; false", "sub a C.UTF-8"),
        ("cd sub; export MODE=a; trap - EXIT; exit 3", None),
        ("cd sub; export MODE=a; builtin() { :; }", None),
        ("cd sub; export MODE=a; eval() { :; }; exit() { :; }; exit 3", "sub a C.UTF-8"),
        ("cd sub; export MODE=a\necho 'b", "sub a C.UTF-8"),
        ("cd sub; export MODE=a; true \\", "sub a C.UTF-8"),
        ("cd sub; export MODE=a; cat <<E\nb", "sub a C.UTF-8"),
        ("cd sub; export MODE=a; sleep 60", None),
        ("cd sub; export MODE=a; rm $(trap -p | grep -o '/[^ ]*toolbus-shell-[a-z0-9_]*')", None),
        ("export BASH_ENV=/dev/stdin POSIXLY_CORRECT=1 SHELLOPTS; set -n", None),
        ("pwd() { echo /; }; ls() { rm -r .; }; export -f pwd ls; cd sub", None),
    ],
)
async def test_the_next_command_starts_with_what_a_command_ended_with(
    shell: _KeepingShell, command: str, seen: str | None
) -> None:
    before = " ".join((await shell.out(LOOK)).split())
    result = await shell.run(command, timeout_s=0.3 if "sleep" in command else 60)
    if "ls()" in command:
        assert await shell.out("type -t ls") == "file\n"
        return
    assert " ".join((await shell.out(LOOK)).split()) == (seen or before)
    is_read = "(exit 1" not in command
    assert ("are as before this command" in result["stderr"]) is (seen is None and is_read)


@pytest.mark.parametrize(
    "command",
    ["exit 3", "false", "trap 'echo bye' EXIT; false", "(exit 7", 'echo $# "$@" $0', "set -u; $1"],
)
async def test_a_command_ends_as_it_does_without_keeping(
    shell: _KeepingShell, command: str
) -> None:
    plain = await Shell(shell.workdir).execute(ANN, "run", {"command": command})
    result: Any = plain.value
    found = await shell.run(command)
    assert (found["exit"], found["stdout"]) == (result["exit"], result["stdout"])


@pytest.mark.parametrize(
    "value",
    ["", 'a"b$c`d\\e!', "'\n\t\x01\x1b[0m\\n\x7f", 'declare -x PATH="x"\n', "é\u2028", "\x85"],
)
async def test_values_last_as_they_are(shell: _KeepingShell, value: str) -> None:
    await shell.run(f"export MODE={shlex.quote(value)} LAST")
    found = await shell.out("printenv -0 MODE | od -An -v -tx1; echo ${LAST-unset}")
    assert bytes.fromhex(found.removesuffix("unset\n")) == value.encode() + b"\0"
    assert await shell.out("ls nowhere 2>&1 | wc -l") == "1\n"


async def test_each_caller_has_its_own(shell: _KeepingShell) -> None:
    await shell.run("cd sub; export MODE=ann")
    for_ann = ToolContext(caller=BEN.caller, on_behalf_of=ANN.caller)
    for other in (BEN, for_ann):
        assert await shell.out("echo $MODE$OLDPWD", other) == "\n"


async def test_a_job_starts_there_and_changes_nothing(shell: _KeepingShell) -> None:
    await shell.run("cd sub")
    job = (await shell.run("pwd; cd /; export MODE=job", background=True))["job"]
    page: Any = {"running": True}
    while page["running"]:
        await shell.run("true")
        page = (await shell.toolkit.execute(ANN, "read", {"job": job})).value
    assert page["text"].endswith("/sub\n")
    assert await shell.out("echo ${PWD##*/} $MODE") == "sub\n"


async def test_a_command_is_judged_where_and_with_what_it_will_run(
    shell: _KeepingShell, tmp_path: Path
) -> None:
    (tmp_path / "sub" / "link").symlink_to("/etc")
    assert (await shell.assess("touch link/x")).within_workdir
    await shell.run("cd sub; export LANG=C NO_COLOR=1")
    assert not (await shell.assess("touch link/x")).within_workdir
    assert (await shell.assess("ls")).read_only
    await shell.run("export PATH=$PWD:$PATH LD_PRELOAD=")
    assessment = await shell.assess("ls")
    assert (assessment.behavior, assessment.immune, assessment.read_only) == ("ask", False, False)
    assert assessment.message.endswith("that may change it: LD_PRELOAD, PATH")
    assert (assessment.matches, assessment.parts) == (("ls:*",), ((),))
    assert (await shell.assess("eval $x")).immune
    assert (await shell.assess("ls", BEN)).read_only


async def test_a_command_does_not_run_in_another_place_than_it_was_judged_for(
    shell: _KeepingShell,
) -> None:
    await shell.assess("pwd")
    await shell.run("cd sub")
    with pytest.raises(ToolFailed, match="nothing was run, call it again") as raised:
        await shell.run("pwd")
    assert raised.value.details["reason"] == "changed"
    assert not raised.value.retryable  # a client would repeat it unjudged
    assert (await shell.out("pwd")).endswith("/sub\n")


async def test_after_a_directory_that_vanished_the_next_command_starts_anew(
    shell: _KeepingShell, tmp_path: Path
) -> None:
    await shell.run("cd sub")
    (tmp_path / "sub").rmdir()
    with pytest.raises(ToolFailed, match="does not exist any more: nothing was run"):
        await shell.run("touch here")
    await shell.run("touch here")
    assert (tmp_path / "here").exists()


@pytest.mark.parametrize("size", [70_000, 300_000])
async def test_too_many_variables_are_not_saved(shell: _KeepingShell, size: int) -> None:
    await shell.run("export MODE=small")
    parts = "; ".join(f"export BIG{number}=$x" for number in range(3))
    command = f"cd sub; x=$(printf %{size // 3}s x); {parts}"
    result = await shell.run(command)
    assert result["stderr"].endswith("[variables are not kept: they have over 65,536 bytes]\n")
    assert await shell.out("echo ${PWD##*/} $MODE ${#BIG0}") == "sub small 0\n"
