"""An error about a missing grant names the command that creates a token with it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from support.processes.command_line import CommandLine, hosted_sums


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with hosted_sums(tmp_path_factory.mktemp("grants")) as toolbus:
        yield toolbus


def token(toolbus: CommandLine, *grants: str) -> str:
    made = toolbus.run_here("token", "create", "--name", "eve", *grants)
    assert made.code == 0, made.err
    return made.out.strip()


@pytest.mark.parametrize(
    ("command", "present", "missing"),
    [
        ("watch --once", "--allow sums", "--grant observe"),
        ("admin rooms", "--allow sums", "--grant admin"),
        ("tools", "--grant messaging", "--grant agents.use_tools"),
        ("room participants", "--allow sums", "--grant presence"),
        ("room send --all note", "--allow sums", "--grant messaging"),
        ("tools sums", "--grant agents.use_tools --deny sums", "--allow sums"),
        ("call sums.add a=1", "--grant messaging", "--allow sums.add"),
        ("call sums.add a=1 --on-behalf-of bob", "--allow sums", "--grant agents.act_for=bob"),
        ("host sum_tools:sums", "--allow x", "--grant agents.register_public_toolkit"),
        (
            "host sum_tools:sums",
            "--preset host --grant agents.register=x",
            "--grant agents.register=sums",
        ),
    ],
)
def test_missing_grant_is_named_with_its_command(
    toolbus: CommandLine, command: str, present: str, missing: str
) -> None:
    given = ("--token", token(toolbus, *present.split()))
    refused = toolbus.run_here(*command.split(), *given)
    assert (refused.code, refused.out) == (3, "")
    found = re.search(r"next: .*`(toolbus token create --name NAME (--\S+ \S+))`", refused.err)
    assert found, refused.err
    assert found[2] == missing
    added = shlex.split(found[1])[5:]
    assert token(toolbus, *present.split(), *added)
    if not command.startswith(("host", "tools sums")):
        more = ("--token", token(toolbus, *present.split(), *added))
        assert toolbus.run_here(*command.split(), *more).code == 0
