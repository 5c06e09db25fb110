"""Files of MCP servers, and the names that are made from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolbus_toolkits.mcp.config import read_file, read_servers, usual_files
from toolbus_toolkits.mcp.names import tool_name, tool_names, toolkit_name


def entry_of(**entry: Any) -> Any:
    return read_servers({"mcpServers": {"a": entry}}, "test").servers["a"]


def skipped(**entry: Any) -> str:
    (found,) = read_servers({"mcpServers": {"a": entry}}, "test").skipped
    return found.reason


@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"command": "npx"}, "stdio"),
        ({"command": "npx", "type": "stdio"}, "stdio"),
        ({"url": "https://example.org/mcp"}, "streamable_http"),
        ({"url": "https://example.org/sse"}, "sse"),
        ({"url": "https://example.org/sse/?key=1"}, "sse"),
        ({"url": "https://example.org/mcp?next=/sse"}, "streamable_http"),
        ({"url": "https://example.org/sse", "type": "http"}, "streamable_http"),
        ({"serverUrl": "https://example.org/x", "transport": "sse"}, "sse"),
        ({"httpUrl": "https://example.org/x"}, "streamable_http"),
    ],
)
def test_the_transport_is_what_is_written_or_what_the_entry_has(
    entry: dict[str, Any], transport: str
) -> None:
    assert entry_of(**entry).transport == transport


def test_keys_of_editors_are_understood_and_unknown_ones_ignored() -> None:
    entry = entry_of(
        command="npx",
        args=["-c", "echo ${HOME}"],
        env={"A": "b", "C": "${cred:a/b/c}"},
        timeout=5,
        enabledTools=["a"],
        autoApprove=["a"],
        assign_to_agents=["ann"],
    )
    assert (entry.timeout_s, entry.enabled_tools) == (5.0, {"a"})
    assert entry.shared_with == ("name:ann",)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, 'must have either "command" or "url"'),
        ({"commnd": "x"}, 'must have either "command" or "url", not \'commnd\''),
        ({"command": "x", "args": "y"}, "args: Input should be a list"),
        ({"command": "x", "env": {"KEY": "${input:key}"}}, "${input:key} is not filled in here"),
        ({"url": "https://example.org", "headers": {"A": "Bearer ${KEY:-hunter2}"}}, "${KEY} is"),
        ({"command": "x", "args": ["${workspaceFolder}/a"]}, "${workspaceFolder} is not"),
        ({"command": "x", "url": "https://example.org"}, 'has both "command" and "url"'),
        ({"command": "x", "type": "sse"}, 'must have "url"'),
        ({"url": "https://example.org", "type": "stdio"}, 'must have "command"'),
        ({"command": "x", "type": "carrier pigeon"}, "transport must be one of"),
        ({"url": "ftp://example.org"}, "must be an http or https address"),
        ({"url": "https://a:b@example.org"}, "must not hold a user or password"),
        ({"url": "https://example.org?t=${cred:a/b/c}"}, "only env and headers may refer"),
        ({"command": "x", "args": ["${cred:a/b/c}"]}, "only env and headers may refer"),
        ({"command": "x", "timeout": -1}, "greater than 0"),
        ({"command": "x", "assign_to_agents": 5}, "must be a list of names"),
        ({"command": "x", "assign_to_agents": "ann"}, "must be a list of names"),
        ({"url": "http://[::1"}, "must have a valid host and port"),
        ({"url": "http://example.org:99999"}, "must have a valid host and port"),
        ({"url": "http://me:hunter2/"}, "must have a valid host and port"),
        ({"url": "http://me:hunter2@a\u2100b"}, "must have a valid host and port"),
        ({"command": "x", "env": {"KEY": "${KEY-hunter2}"}}, "${KEY} is"),
        ({"command": "x", "env": {"A": 1}}, "valid string"),
        ({"command": "x", "disabled": True}, "it is disabled"),
        ({"command": "x", "stateful": False}, "stateful must be true"),
        (
            {"command": "x", "enabled_tools": ["a"], "disabled_tools": ["a"]},
            "a is both enabled and disabled",
        ),
    ],
)
def test_an_entry_that_is_not_valid_is_skipped_with_the_reason(
    entry: dict[str, Any], words: str
) -> None:
    reason = skipped(**entry)
    assert words in reason
    assert "hunter2" not in reason


def test_one_bad_entry_leaves_the_others() -> None:
    found = read_servers({"good": {"command": "x"}, "bad": 5, "worse": {"url": 1}}, "test")
    assert list(found.servers) == ["good"]
    assert [each.name for each in found.skipped] == ["bad", "worse"]


def test_a_secret_is_in_no_text_of_an_entry() -> None:
    secret = {"A": "hunter2"}
    assert "hunter2" not in repr(entry_of(command="x", args=["hunter2"], env=secret))
    assert "hunter2" not in skipped(url="https://example.org?k=hunter2", headers=secret, timeout=0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expecting value"),
        ("[]", 'an object with "mcpServers"'),
        ('{"mcpServers": []}', 'an object with "mcpServers"'),
        ("[" * 100_000, "nests too deep"),
        (json.dumps({f"s{each}": {} for each in range(257)}), "has 257 servers"),
        ('"' + "x" * 1_100_000 + '"', "larger than 1 MiB"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_with_its_path(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=words) as refused:
        read_file(path)
    assert str(path) in str(refused.value)
    with pytest.raises(ValueError, match="cannot be read"):
        read_file(tmp_path / "missing.json")


def test_files_of_the_folder_come_before_those_of_the_user(tmp_path: Path) -> None:
    folder, home, ours = tmp_path / "work", tmp_path / "home", tmp_path / "home" / ".toolbus"
    paths = [folder / ".mcp.json", ours / "mcp.json", home / ".cursor" / "mcp.json"]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    assert usual_files(folder, home, ours) == paths


def test_names_are_the_same_whatever_else_is_there() -> None:
    assert toolkit_name("GitHub") == "github"
    assert toolkit_name("files") == "files"
    assert tool_name("read_file") == "read_file"
    odd = ["a.b", "a:b", "a_b", "x" * 300, "ü", ""]
    names = {tool_name(each) for each in odd}
    assert len(names) == len(odd)
    assert {len(name) <= 64 for name in names} == {True}
    assert tool_names(odd) == tool_names(reversed(odd))
    assert {toolkit_name(each)[0] for each in ["9 lives", "", "_x", "Übung"]} == {"m"}


def test_a_tool_that_bears_the_name_made_for_another_keeps_it() -> None:
    made = tool_name("a.b")
    assert tool_names(["a.b", made]) == {made: made}


def test_of_two_servers_with_one_name_the_one_that_bears_it_counts() -> None:
    entries = {"Files": {"command": "x"}, "files": {"command": "y"}}
    for data in (entries, dict(reversed(entries.items()))):
        found = read_servers(data, "test")
        assert found.servers["files"].command == "y"
        assert "'Files' would have the name of another" in found.skipped[0].reason
