"""`toolbus room participants`, `send` and `listen`, each as a process."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.processes.command_line import CommandLine, Running, hosted_sums


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with hosted_sums(tmp_path_factory.mktemp("messages")) as toolbus:
        yield toolbus


@contextmanager
def listening(toolbus: CommandLine, name: str, *options: str) -> Iterator[Running]:
    with toolbus.start("room", "listen", "--name", name, *options) as running:
        assert running.process.stderr is not None
        expected = f"listening as {name} in room main  (Ctrl-C to stop)\n"
        assert running.process.stderr.readline() == expected
        yield running


def token(toolbus: CommandLine, *grants: str) -> str:
    return toolbus.run_here("token", "create", "--name", "eve", *grants).out.strip()


def test_participants_are_listed_with_their_toolkits(toolbus: CommandLine) -> None:
    shown = toolbus.run("room", "participants", "--name", "ann")
    assert (shown.code, shown.err) == (0, "")
    rows = [line.split() for line in shown.out.splitlines()]
    assert rows[0] == ["name", "role", "toolkits", "since", "attributes"]
    assert [row[:3] for row in rows[1:]] == [["ann", "user", "none"], ["bob", "user", "sums"]]
    facts = toolbus.value_here("room", "participants", "--json", "--name", "ann")[1]
    assert {name: facts[name] for name in ("name", "role", "toolkits", "attributes")} == {
        "name": "bob",
        "role": "user",
        "toolkits": ["sums"],
        "attributes": {},
    }
    with toolbus.hosting("clock", "--name", "ann"):
        repeated = toolbus.run_here("room", "participants", "--name", "ann").out.splitlines()
    assert repeated[0].split()[:3] == ["name", "id", "role"]
    assert len({line.split()[1] for line in repeated}) == len(repeated)
    without = token(toolbus, "--grant", "presence")
    assert (
        toolbus.value_here("room", "participants", "--json", "--token", without)[0]["toolkits"]
        is None
    )


@pytest.mark.parametrize(
    ("typed", "body"),
    [
        ([], None),
        (['{"a": [1]}'], {"a": [1]}),
        (['"good day"'], "good day"),
        (["text=good day", "n:=2"], {"text": "good day", "n": 2}),
    ],
)
def test_listener_receives_the_body_as_it_was_typed(
    toolbus: CommandLine, typed: list[str], body: object
) -> None:
    with listening(toolbus, "liz", "--json") as listener:
        sent = toolbus.run_here("room", "send", "liz", "note", *typed, "--name", "ann")
        assert (sent.code, sent.out, sent.err) == (0, "sent to 1 connection\n", "")
        got = json.loads(listener.line())
        assert (got["kind"], got["from"]["name"], got["direct"]) == ("note", "ann", True)
        assert got["body"] == body
        assert listener.end(signal.SIGINT).code == 0


def test_broadcast_reaches_every_listener_and_kinds_are_filtered(toolbus: CommandLine) -> None:
    with listening(toolbus, "liz") as all_kinds, listening(toolbus, "max", "--kind", "b") as only_b:
        for kind in ("a", "b"):
            sent = toolbus.run("room", "send", "--all", kind, "x=\x1b\n", "--json")
            assert json.loads(sent.out) == {"delivered": 2}, sent.err
        lines = [all_kinds.line(), all_kinds.line(), only_b.line()]
        assert [line.split()[1] for line in lines] == ["a", "b", "b"]
        assert lines[2].rstrip().endswith('to all: {"x": "\\u001b\\n"}')


@pytest.mark.parametrize(
    ("typed", "code", "text"),
    [
        (["nobody", "note"], 4, "no participant named 'nobody' is in room main"),
        (["bob"], 2, "write `toolbus room send NAME KIND [BODY]`"),
        (["bob", "note", "word"], 2, "the body 'word' is not JSON: "),
        (["bob", "note", '{"a":'], 2, """the body '{"a":' is not JSON: """),
        (["--all", "bob", "hello"], 2, "; --all takes no NAME, so bob is the kind"),
        (["bob", "no note"], 2, "'no note' is not a kind of message: write 1 to 64 of A-Z"),
        (["bob", "note"], 0, "no connection of 'bob' subscribes to messages now"),
    ],
)
def test_message_without_a_receiver_or_a_valid_form_is_explained(
    toolbus: CommandLine, typed: list[str], code: int, text: str
) -> None:
    sent = toolbus.run_here("room", "send", *typed)
    assert sent.code == code
    assert text in sent.err
