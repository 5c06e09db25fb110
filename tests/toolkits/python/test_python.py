"""The toolkit `python`, used in each way that there is, and what `run` and `reset` promise."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from support.patience import PATIENCE_S
from support.processes.held_pipe import held_pipe
from support.rooms.turns import turn_built, turn_hosted, turn_in_process
from toolbus import (
    ApprovalDecision,
    ApprovalRequest,
    FileChunk,
    InvalidArguments,
    JsonChunk,
    MixedChunk,
    Participant,
    Permissions,
    ToolContext,
    ToolFailed,
    ToolUse,
    Turn,
)
from toolbus_toolkits.launcher import LaunchFailed, output
from toolbus_toolkits.python import Python, PythonConfig, python, sessions, tools, written

Call = Callable[..., Coroutine[Any, Any, Any]]
PYTHONS = sorted(Path("~/.pyenv/versions").expanduser().glob("3.*/bin/python3"))


def _in_process(workdir: Path) -> AbstractAsyncContextManager[Turn]:
    return turn_in_process(Python(workdir))


def _hosted(workdir: Path) -> AbstractAsyncContextManager[Turn]:
    return turn_hosted(python(PythonConfig(workdir=workdir)))


def _built(workdir: Path) -> AbstractAsyncContextManager[Turn]:
    return turn_built(python, "python", workdir=workdir)


@pytest.mark.parametrize("offered", [_in_process, _hosted, _built])
async def test_code_runs_in_each_way_the_toolkit_is_offered(tmp_path: Path, offered: Any) -> None:
    (tmp_path / "own.py").write_text("answer = 42")
    seen: list[Any] = []
    async with offered(tmp_path) as turn:
        code = "import own, sys\nprint('out')\nprint('err', file=sys.stderr)\nown.answer"
        assert await turn.call("python.run", code=code) == {
            "stdout": "out\n",
            "stderr": "err\n",
            "value": "42",
            "error": None,
            "files": [],
            "timed_out": False,
            "truncated": False,
        }
        result, file = await turn.call("python.run", code="open('a.csv', 'w').write('x,y')")
        assert (result["files"], result["value"]) == (["a.csv"], "3")
        assert (file.name, file.mime_type, await file.read()) == ("a.csv", "text/csv", b"x,y")

        def note(value: Any) -> None:
            seen.append(value)
            (tmp_path / "go").touch()

        code = "import os\nprint('first')\nwhile not os.path.exists('go'): pass\nos.remove('go')"
        await turn.invoke("python.run", {"code": code}, on_progress=note)
        assert seen[0] == {"stdout": "first\n", "stderr": ""}
        code = "print('early')\nwhile True: pass"
        late = (await turn.invoke("python.run", {"code": code}, timeout_s=3)).value
        assert (late["timed_out"], late["stdout"], late["error"]) == (True, "early\n", None)

        await turn.call("python.run", code="data = [1]", keep=True)
        assert (await turn.call("python.run", code="data", keep=True))["value"] == "[1]"
        assert await turn.call("python.reset") == {"ended": True}
        gone = await turn.call("python.run", code="data", keep=True)
        assert "NameError: name 'data' is not defined" in gone["error"]


def _caller(workdir: Path, **options: Any) -> Call:
    toolkit = Python(workdir, **options)

    async def call(tool: str = "run", who: str = "ann", **arguments: Any) -> Any:
        context = ToolContext(caller=Participant(id="", name=who, issuer="test"))
        value = (await toolkit.execute(context, tool, arguments)).value
        return value[0] if isinstance(value, list) else value

    return call


NEEDS_NO_PRINT = {
    # The value or the last line of the error of code, kept or fresh.
    "1 + 1": "2",
    "x = 1": None,
    "None": None,
    "'ä\\ud800'": "'ä\\ud800'",
    "__name__": "'__main__'",
    "import sys; sys.argv": "['']",
    "if __name__ == '__main__':\n    x = 3\nx": "3",
    "from __future__ import annotations\ndef f(a: B): ...\nf.__annotations__": "{'a': 'B'}",
    "import pickle\nclass A: ...\ntype(pickle.loads(pickle.dumps(A()))) is A": "True",
    "import sys; sys.exit()": None,
    "import sys; sys.exit(3)": "SystemExit: 3",
    "import sys; sys.exit('no')": "SystemExit: no",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "input()": "EOFError: EOF when reading a line",
    "x = (": "SyntaxError: '(' was never closed",
    "a\0b": "source code string cannot contain null bytes",
    "class A:\n    def __repr__(self): raise KeyError(1)\nA()": "KeyError: 1",
    "class E(Exception):\n    def __str__(self): raise SystemExit\nraise E": "str() failed>",
    "raise SyntaxError('x', ('name', 1, 1, 5))": "SyntaxError",
    "def f(): f()\nf()": "RecursionError: maximum recursion depth exceeded",
    "import os; os._exit(3)": "the interpreter ended with status 3",
    "import os; os.kill(os.getpid(), 9)": "the interpreter ended with status 137 (Killed)",
    "import sys; sys.stdout.close(); 1": "1",
    "import os; os.close(1); 2": "2",
    "import os; os.closerange(3, 100)": "the interpreter ended with status 1",
    "import sys, io; sys.stdout = io.TextIOWrapper(sys.stdout.buffer); print('x'); 4": "4",
}


@pytest.mark.parametrize("keep", [False, True])
async def test_a_result_has_the_value_or_the_error_without_frames_of_ours(
    tmp_path: Path, keep: bool
) -> None:
    call = _caller(tmp_path)
    for code, expected in NEEDS_NO_PRINT.items():
        result = await call(code=code, keep=keep)
        found = result["error"].splitlines()[-1] if result["error"] else result["value"]
        assert found == expected or (expected and found.endswith(expected)), (code, result)
        assert "_run" not in (result["error"] or ""), result
    await call("reset")


async def test_a_traceback_shows_the_lines_of_the_code_and_of_earlier_code(tmp_path: Path) -> None:
    call = _caller(tmp_path)
    wrong = await call(code="if True:\n    x = 1 +* 2")
    assert wrong["error"].splitlines()[:3] == [
        '  File "<code 1>", line 2',
        "    x = 1 +* 2",
        "           ^",
    ]
    await call(code="def f(x):\n    return 1 / x", keep=True)
    raised = (await call(code="1\nf(0)", keep=True))["error"]
    assert raised.startswith('Traceback (most recent call last):\n  File "<code 2>", line 2, in')
    assert '  File "<code 1>", line 2, in f\n    return 1 / x' in raised
    await call("reset")


async def test_each_text_of_a_result_is_bounded_and_hides_nothing(tmp_path: Path) -> None:
    call = _caller(tmp_path)
    code = "print('a\\u202e\\ud800\\r50%'); print('b' * 40_000); '\\u202e' + 'c' * 10**8"
    result = await call(code=code)
    assert result["stdout"].startswith("a\\u202e\\ud800\n50%\nbbb")
    assert len(result["stdout"]) <= 30_000
    assert len(result["value"]) < 11_000
    assert "characters is left out]" in result["value"]
    assert result["truncated"]
    assert len((await call(code="raise ValueError('d' * 10**8)"))["error"]) < 11_000


@pytest.mark.parametrize("keep", [False, True])
async def test_endless_output_ends_the_code_and_leaves_others_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    monkeypatch.setattr(output, "MAX_OUTPUT_BYTES", 6 * 1024 * 1024)
    call = _caller(tmp_path)
    running = asyncio.create_task(call(code="while True: print('y' * 1000)", keep=keep))
    assert (await call(code="1"))["value"] == "1"
    result = await running
    assert "[it was ended: it wrote more than 6,291,456 bytes]\n" in result["stderr"]
    assert ("and its names with it" in result["stderr"]) == keep
    assert result["error"] == "the interpreter ended with status 137 (Killed)"


async def test_limits_hold_for_the_code_and_are_errors_in_it(tmp_path: Path) -> None:
    call = _caller(tmp_path, max_memory_mib=512, max_file_mib=1)
    assert "MemoryError" in (await call(code="x = 'a' * 2**30"))["error"]
    large = await call(code="open('large', 'wb').write(bytes(2**21))")
    assert large["error"].endswith("OSError: [Errno 27] File too large\n")
    assert large["files"] == ["large"]


async def test_what_code_leaves_running_ends_with_it_and_threads_end_first(tmp_path: Path) -> None:
    call = _caller(tmp_path)
    daemon = """
import os, subprocess, time
with open('held', 'w') as held:
    subprocess.Popen(['sleep', '100'], stdout=held, start_new_session=True)
    if not os.fork(): time.sleep(100)
"""
    async with asyncio.timeout(PATIENCE_S), held_pipe(tmp_path / "held") as held:
        assert (await call(code=daemon))["error"] is None
        assert await held.read() == b""
    thread = "import threading\nthreading.Thread(target=lambda: print('late')).start()\n5"
    waited = await call(code=thread)
    assert (waited["stdout"], waited["value"]) == ("late\n", "5")
    endless = "import threading\nthreading.Thread(target=threading.Event().wait).start()\n6"
    late = await call(code=endless, timeout_s=1)
    assert (late["timed_out"], late["value"]) == (True, "6")


@pytest.mark.parametrize("keep", [False, True])
async def test_a_fork_comes_back_once(tmp_path: Path, keep: bool) -> None:
    call = _caller(tmp_path)
    code = "import os, sys\npid = os.fork()\nif not pid: sys.exit(7)\nos.waitpid(pid, 0)[1] >> 8"
    assert (await call(code=code, keep=keep))["value"] == "7"
    code = "if not os.fork(): raise ValueError('of the child')\nos.wait()[1] >> 8"
    result = await call(code=f"import os\n{code}", keep=keep)
    assert (result["value"], result["error"]) == ("1", None)
    assert result["stderr"].endswith("ValueError: of the child\n")
    await call("reset")


# Files


async def test_written_files_come_with_the_result_and_all_else_is_only_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written, "_MAX_FILE_BYTES", 1000)
    work = tmp_path / "work"
    work.mkdir()
    (work / "same").write_text("1")
    (work / "changed").write_text("1")
    (tmp_path / "outside").write_text("secret")
    code = """
import os
os.makedirs('deep/er')
for name, size in {'changed': 2, 'deep/er/b': 3, 'c': 999, 'd': 4, '.env': 5}.items():
    open(name, 'w').write('x' * size)
os.mkfifo('fifo')
os.symlink('../outside', 'link')
os.symlink('..', 'deep/up')
open(b'\\xff', 'w').close()
os.makedirs('__pycache__'); open('__pycache__/a', 'w').close()
open('../beside', 'w').close()
"""
    context = ToolContext()
    chunk = await Python(work).execute(context, "run", {"code": code})
    assert isinstance(chunk, MixedChunk)
    result, *files = chunk.chunks
    assert isinstance(result, JsonChunk)
    assert result.json["files"] == [
        *(".env", "c", "changed", "d", "deep/er/b", "deep/up", "fifo", "link", "\\udcff"),
    ]
    sent = {file.name: file.data for file in files if isinstance(file, FileChunk)}
    # `d` has no room beside `c`, which is one byte less than all of it.
    assert sent == {"c": b"x" * 999, "\\udcff": b""} or sent.keys() == {"c", "\\udcff"}


async def test_files_are_not_listed_where_too_many_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = _caller(tmp_path)
    many = await call(code="for i in range(300): open(f'{i:03}', 'w').close()")
    assert (len(many["files"]), many["truncated"]) == (200, True)
    assert many["stderr"] == "[100 more files were written]\n"
    monkeypatch.setattr(written, "_MAX_ENTRIES", 100)
    found = await call(code="open('a', 'w').close()")
    assert found["files"] == []
    assert found["stderr"].startswith("[files are not listed")


async def test_only_files_of_this_call_come_whatever_time_they_are_given(tmp_path: Path) -> None:
    code = "import os\nopen('{}', 'w').close()\nos.utime('{}', (0, 0))"
    async with turn_in_process(Python(tmp_path)) as turn:
        for name in "abcdefgh":
            result, _ = await turn.call("python.run", code=code.replace("{}", name), keep=True)
            assert result["files"] == [name]


async def test_a_link_in_the_place_of_a_written_file_is_not_followed(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / ".env").write_text("secret")
    (work / "a").write_text("1")
    paths = written.written_since(str(work), 0)
    (work / "a").unlink()
    (work / "a").symlink_to(".env")
    assert paths is not None
    assert written.files_of(str(work), paths) == ([".env", "a"], [])


def test_a_folder_in_whose_place_a_link_is_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "outside" / "deep").mkdir(parents=True)
    (tmp_path / "outside" / "deep" / "payroll").touch()
    (tmp_path / "work" / "d").symlink_to(tmp_path / "outside")
    for folder in ("d", "d/deep"):
        path = str(tmp_path / "work" / folder)
        with pytest.raises(NotADirectoryError), written._listed(path):
            pass


async def test_more_files_than_are_named_leave_the_rest_of_the_result(tmp_path: Path) -> None:
    code = "for n in range(4_500): open(f'{n}\\x01', 'w').close()\n'done'"
    async with turn_in_process(Python(tmp_path)) as turn:
        found = await turn.call("python.run", code=code)
    assert (found[0]["value"], len(found[0]["files"]), len(found)) == ("'done'", 200, 201)
    assert "4,300 more files were written" in found[0]["stderr"]


async def test_a_reply_that_code_has_forged_ends_the_interpreter(tmp_path: Path) -> None:
    forged = (
        "import os, socket\n"
        "for n in os.listdir('/proc/self/fd'):\n"
        '    try: socket.socket(fileno=os.dup(int(n))).send(b\'{"id": "", "value": "no",'
        ' "error": null, "is_cut": false}\\n\')\n'
        "    except OSError: pass\n"
    )
    async with turn_in_process(Python(tmp_path)) as turn:
        assert (await turn.call("python.run", code=forged, keep=True))["value"] is None
        assert (await turn.call("python.run", code="1", keep=True))["value"] == "1"


async def test_a_stdout_of_its_own_is_no_error(tmp_path: Path) -> None:
    code = "import sys\nclass Tee:\n    def write(self, text): pass\nsys.stdout = Tee()\n1"
    assert (await _caller(tmp_path)(code=code))["value"] == "1"


async def test_a_working_directory_that_goes(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    call = _caller(work)
    gone = await call(code="import os, shutil\nshutil.rmtree(os.getcwd())\n1", keep=True)
    assert (gone["value"], gone["files"]) == ("1", [])
    assert (await call(code="2", keep=True))["value"] == "2"
    with pytest.raises(ToolFailed, match=f"there is no folder {work}") as raised:
        await call(code="3")
    assert raised.value.executed == "no"
    await call("reset")


# Interpreters


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("true", "did not start as Python 3.9 or newer"),
        ("cat", "did not start as Python 3.9 or newer: .*cat"),
        ("yes", "did not start as Python 3.9 or newer"),
    ],
)
async def test_a_program_that_is_not_python_is_named(
    tmp_path: Path, program: str, words: str
) -> None:
    for keep in (False, True):
        with pytest.raises(ToolFailed, match=words) as raised:
            await _caller(tmp_path, interpreter=program)(code="1", keep=keep)
        assert raised.value.executed == "no"
    with pytest.raises(LaunchFailed, match=words):
        async with turn_hosted(Python(tmp_path, interpreter=program)):
            pass


async def test_an_interpreter_that_says_nothing_costs_no_more_than_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 100\n")
    silent.chmod(0o755)
    with pytest.raises(ToolFailed, match="was not started in its time") as raised:
        await _caller(tmp_path, interpreter=silent)(code="1", timeout_s=0.5)
    assert raised.value.executed == "no"
    monkeypatch.setattr(tools, "_MAX_START_S", 0.5)
    with pytest.raises(LaunchFailed, match="silent was not ready"):
        async with turn_hosted(Python(tmp_path, interpreter=silent)):
            pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"interpreter": "no/such/python"}, "there is no program 'no/such/python'"),
        ({"interpreter": "/etc/passwd"}, "there is no program '/etc/passwd'"),
        ({"sandbox": '{"backend": "docker", "image": "a"}'}, "docker is not supported"),
        ({"env": {"TOOLBUS_TOKEN": "a"}}, "is a setting of toolbus"),
    ],
)
def test_a_config_that_cannot_be_is_refused(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        PythonConfig.model_validate({"workdir": tmp_path, **options})


async def test_a_virtual_environment_has_its_packages(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    make = "import sys, venv; venv.create(sys.argv[1], symlinks=True)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", make, venv)
    assert await process.wait() == 0
    (packages,) = venv.glob("lib/*/site-packages")
    (packages / "only_there.py").write_text("where = 'venv'")
    call = _caller(tmp_path, interpreter=venv / "bin" / "python")
    code = "import only_there, subprocess, sys\nout = subprocess.check_output(['python', '-c',"
    code += " 'import only_there; print(only_there.where)'], text=True)\nsys.prefix, out"
    assert (await call(code=code))["value"] == str((str(venv), "venv\n"))


@pytest.mark.parametrize("interpreter", PYTHONS or [Path(sys.executable)], ids=str)
async def test_other_versions_of_python_run_code(tmp_path: Path, interpreter: Path) -> None:
    call = _caller(tmp_path, interpreter=interpreter)
    version = tuple(map(int, interpreter.parts[-3].split(".")[:2])) if PYTHONS else (3, 11)
    if version < (3, 9):
        return
    result = await call(code="import sys\nprint('x')\nsys.version_info[:2]", keep=True)
    assert (result["value"], result["stdout"]) == (str(version), "x\n")
    assert (await call(code="def f(): 1/0\nf()", keep=True))["error"].count("<code 2>") == 2
    await call("reset")


async def test_code_gets_no_variables_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "secret")
    call = _caller(tmp_path, env={"GIVEN": "1"})
    found = await call(code="import os\nsorted(os.environ.keys() & {'SECRET_KEY', 'GIVEN'})")
    assert found["value"] == "['GIVEN']"


@pytest.mark.parametrize("arguments", [{"code": ""}, {"code": "1", "timeout_s": 601}])
async def test_arguments_that_are_out_of_range_are_refused(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArguments):
        await _caller(tmp_path)(**arguments)


# Interpreters that stay


async def test_each_asker_has_an_interpreter_and_eight_may(tmp_path: Path) -> None:
    call = _caller(tmp_path)
    for number in range(8):
        await call(who=str(number), code=f"x = {number}", keep=True)
    assert (await call(who="3", code="x", keep=True))["value"] == "3"
    with pytest.raises(ToolFailed, match="leave `keep` out, or try again later") as raised:
        await call(who="9", code="1", keep=True)
    assert (raised.value.executed, raised.value.retryable) == ("no", True)
    assert (await call(who="9", code="1"))["value"] == "1"
    await call(who="5", code="import os; os._exit(0)", keep=True)
    assert (await call(who="9", code="1", keep=True))["value"] == "1"
    assert await call("reset", who="5") == {"ended": False}
    for number in range(10):
        await call("reset", who=str(number))


async def test_a_call_waits_its_turn_and_one_without_time_left_has_not_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    call = _caller(tmp_path)
    code = "print('begun', file=open('held', 'w'), flush=True)\nx = open('go').read()"
    async with asyncio.timeout(PATIENCE_S), held_pipe(tmp_path / "held") as held:
        first = asyncio.create_task(call(code=code, keep=True))
        assert await held.readline() == b"begun\n"
        with pytest.raises(ToolFailed, match="was not started in its time") as raised:
            await call(code="x = 'never'", keep=True, timeout_s=0.2)
        assert raised.value.executed == "no"
        second = asyncio.create_task(call(code="x", keep=True))
        with await asyncio.to_thread(open, tmp_path / "go", "w") as file:
            file.write("went")
        assert (await first)["error"] is None
        assert (await second)["value"] == "'went'"
    await call("reset")


async def test_a_time_out_ends_the_interpreter_and_says_so(tmp_path: Path) -> None:
    call = _caller(tmp_path)
    await call(code="x = 1", keep=True)
    late = await call(code="print('early')\nwhile True: pass", keep=True, timeout_s=1)
    assert (late["timed_out"], late["stdout"]) == (True, "early\n")
    assert late["stderr"] == "[the interpreter has ended, and its names with it]\n"
    assert "NameError" in (await call(code="x", keep=True))["error"]
    await call("reset")


@pytest.mark.parametrize("end", ["reset", "cancel"])
async def test_a_reset_and_a_cancelled_call_end_code_that_runs(tmp_path: Path, end: str) -> None:
    call = _caller(tmp_path)
    code = "file = open('held', 'w')\nprint('begun', file=file, flush=True)\nwhile True: pass"
    async with asyncio.timeout(PATIENCE_S), held_pipe(tmp_path / "held") as held:
        running = asyncio.create_task(call(code=code, keep=True))
        assert await held.readline() == b"begun\n"
        if end == "cancel":
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        else:
            assert await call("reset") == {"ended": True}
            assert (await running)["error"] == "the interpreter ended with status 137 (Killed)"
        assert await held.read() == b""
    after = await call(code="file", keep=True)
    assert "NameError" in after["error"]
    assert ("this is a new interpreter" in after["stderr"]) == (end == "cancel")
    await call("reset")


@pytest.mark.parametrize("why", ["after 0 idle minutes", "the one before has ended"])
async def test_an_interpreter_that_ends_between_calls_is_named_in_the_next_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    toolkit = Python(tmp_path)
    tool: Any = toolkit.tools[0]
    context = ToolContext()
    os.mkfifo(tmp_path / "go")
    code = (
        "import os, threading\nthreading.Thread(target=lambda: [open('go'), os._exit(1)]).start()"
    )
    await toolkit.execute(context, "run", {"code": code, "keep": True})
    process = tool.group.sessions.running(context).process
    if "idle" in why:
        monkeypatch.setattr(sessions, "_IDLE_S", 0.0)
        await toolkit.execute(context, "run", {"code": "x = 1", "keep": True})
    else:
        (await asyncio.to_thread(open, tmp_path / "go", "w")).close()
    await process.wait()
    result: Any = (await toolkit.execute(context, "run", {"code": "x", "keep": True})).value
    assert "NameError" in result["error"]
    assert result["stderr"].startswith("[this is a new interpreter, without earlier names:")
    assert why in result["stderr"]
    await toolkit.execute(context, "reset", {})


async def test_all_interpreters_end_with_the_last_user_of_the_toolkit(tmp_path: Path) -> None:
    toolkit = Python(tmp_path)
    code = "file = open('held', 'w')\nprint('begun', file=file, flush=True)"
    async with asyncio.timeout(PATIENCE_S), held_pipe(tmp_path / "held") as held:
        async with turn_in_process(toolkit) as outer:
            async with turn_in_process(toolkit) as turn:
                await turn.call("python.run", code=code, keep=True)
            found = await outer.call("python.run", code="file.name", keep=True)
            assert found["value"] == "'held'"
        assert await held.read() == b"begun\n"


# Permissions


@pytest.mark.parametrize("mode", ["default", "accept_edits", "explore"])
async def test_unconfined_code_is_asked_about_with_the_code(tmp_path: Path, mode: Any) -> None:
    asked: list[ApprovalRequest] = []

    async def approve(request: ApprovalRequest) -> ApprovalDecision:
        asked.append(request)
        return ApprovalDecision.deny("no")

    turn = Turn(None, always=[Python(tmp_path)], permissions=Permissions(mode), approve=approve)
    async with turn:
        (result,) = await turn.run([ToolUse("1", "python.run", {"code": "open('a', 'w')"})])
        (reset,) = await turn.run([ToolUse("2", "python.reset", {})])
    assert (result.state, os.listdir(tmp_path)) == ("denied", [])
    asks = mode in ("default", "accept_edits")
    assert [request.assessment.preview for request in asked] == ["open('a', 'w')"] * asks
    assert (reset.state == "ok") == asks


@pytest.mark.parametrize("policy", [None, Permissions("bypass")])
async def test_a_host_says_at_its_start_that_nothing_confines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, policy: Permissions | None
) -> None:
    async with turn_hosted(Python(tmp_path, policy=policy)):
        assert "code of toolkit python: not confined" in caplog.text
        assert ("has no policy" in caplog.text) == (policy is None)
