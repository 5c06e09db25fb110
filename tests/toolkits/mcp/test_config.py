"""Files of MCP servers, and the names that are made from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolbus_toolkits.mcp import McpHub
from toolbus_toolkits.mcp.config import FileContext, read_file, read_servers, usual_files
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


COMMAND = {"command": "x"}
URL = {"url": "https://example.org/mcp"}
UNDERSTOOD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # The command and its surroundings.
    ({"command": ["npx", "-y", "x"], "type": "local"}, {"command": "npx", "args": ("-y", "x")}),
    ({"command": {"path": "npx", "args": ["x"], "env": {"A": "b"}}}, {"args": ("x",)}),
    ({**COMMAND, "args": ["--port", 8080, True]}, {"args": ("--port", "8080", "true")}),
    ({**COMMAND, "args": None, "env": None, "timeout": None, "cwd": None}, {"args": ()}),
    ({**COMMAND, "env": {"PORT": 8080, "ON": True, "X": 1.5, "GONE": None}},
     {"env": {"PORT": "8080", "ON": "true", "X": "1.5"}}),
    ({**COMMAND, "environment": {"A": "b"}}, {"env": {"A": "b"}}),
    ({**COMMAND, "args": ["-c", "echo ${HOME}"]}, {"args": ("-c", "echo ${HOME}")}),
    ({"command": "./run.sh", "cwd": "/x"}, {"command": "/x/run.sh", "cwd": Path("/x")}),
    ({"command": "/bin/run", "cwd": "/x"}, {"command": "/bin/run"}),
    ({"command": "~/x", "args": ["~/y", "a~/z"], "cwd": "~"},
     {"command": "/home/ann/x", "args": ("/home/ann/y", "a~/z"), "cwd": Path("/home/ann")}),
    ({"command": "${HOME}/x", "args": ["--in=${userHome}${/}y"]},
     {"command": "/home/ann/x", "args": ("--in=/home/ann/y",)}),
    ({"transport": {"type": "stdio", "command": "x", "args": ["y"]}}, {"args": ("y",)}),
    # The address.
    ({**URL, "type": "url"}, {"transport": "streamable_http"}),
    ({"httpUrl": "https://b.org/x", "url": "https://a.org"}, {"url": "https://b.org/x"}),
    ({**URL, "command": ""}, {"url": "https://example.org/mcp"}),
    ({**COMMAND, "url": "", "headers": None}, {"url": None, "transport": "stdio"}),
    ({**URL, **COMMAND, "type": "stdio"}, {"url": None, "command": "x"}),
    ({**URL, "type": "remote", "http_headers": {"N": 1}}, {"headers": {"N": "1"}}),
    # Seconds or milliseconds.
    ({**COMMAND, "timeout": 600}, {"timeout_s": 600.0}),
    ({**COMMAND, "timeout": 600_000}, {"timeout_s": 600.0}),
    ({**COMMAND, "timeout": 30_000}, {"timeout_s": 30.0}),
    ({**COMMAND, "timeout_s": 7_200}, {"timeout_s": 7_200.0}),
    ({**COMMAND, "timeout": {"startup": 5_000, "request": 9_000}},
     {"timeout_s": 9.0, "connect_timeout_s": 5.0}),
    ({**COMMAND, "initTimeout": 10_000}, {"connect_timeout_s": 10.0}),
    ({**COMMAND, "startup_timeout_sec": 900, "tool_timeout_sec": 5},
     {"connect_timeout_s": 600.0, "timeout_s": 5.0}),
    # Which tools are shown.
    *(
        ({**COMMAND, key: ["a", "b*"]}, {"enabled_tools": {"a", "b*"}})
        for key in ("enabledTools", "includeTools", "allowedTools", "tools", "available_tools")
    ),
    *(
        ({**COMMAND, key: ["a"]}, {"disabled_tools": {"a"}, "enabled_tools": None})
        for key in ("disabledTools", "excludeTools", "disabled_tools", "deniedTools", "autoBlock")
    ),
    ({**COMMAND, "tools": ["*"]}, {"enabled_tools": None}),
    ({**COMMAND, "tools": []}, {"enabled_tools": set()}),
    ({**COMMAND, "tools": {"exclude": ["a"]}}, {"disabled_tools": {"a"}}),
    ({**COMMAND, "tools": {"include": ["a"], "exclude": ["b"]}},
     {"enabled_tools": {"a"}, "disabled_tools": {"b"}}),
    ({**COMMAND, "tools": {"a": {"enabled": False, "description": "x"}, "b": {"enabled": True}}},
     {"disabled_tools": {"a"}, "enabled_tools": None}),
    ({**COMMAND, "tools": {"a": False, "b": True}}, {"disabled_tools": {"a"}}),
    ({**COMMAND, "tools": {"enabled": False}}, {"disabled_tools": {"*"}}),
    ({**COMMAND, "tools": {"default": False, "a": True}}, {"disabled_tools": {"*"}}),
    ({**COMMAND, "disabledTools": True}, {"disabled_tools": {"*"}}),
    ({**COMMAND, "enabledTools": ["a*", "b"], "includeTools": ["ab", "c"]},
     {"enabled_tools": {"ab"}}),
    ({**COMMAND, "enabledTools": ["a"], "disabledTools": ["a"]},
     {"enabled_tools": {"a"}, "disabled_tools": {"a"}}),
    # Ours, and what loosens or only describes.
    ({**COMMAND, "assign_to_agents": ["ann"]}, {"shared_with": ("name:ann",)}),
    ({**COMMAND, "enabled": True, "disabled": False, "isActive": True}, {"disabled": False}),
    ({**COMMAND, "autoApprove": ["a"], "alwaysAllow": ["a"], "trust": True, "description": "x",
      "watchPaths": ["/x"], "disabled_prompts": ["p"], "readOnly": False, "sandboxEnabled": False,
      "allowSampling": True, "requireApproval": "never", "blockedHosts": []}, {"disabled": False}),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "expected"), UNDERSTOOD)
def test_what_editors_write_is_understood(
    entry: dict[str, Any], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    found = entry_of(**entry)
    assert {key: getattr(found, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("entry", "by_operator", "expected"),
    [
        ({"trusted": True}, True, True),
        ({"trusted": "true"}, True, True),
        ({"trusted": False}, True, False),
        ({"trusted": None}, True, False),
        ({"trusted": True, "Trusted": False}, True, False),
        ({"trust": True, "isTrusted": True, "autoApprove": ["*"]}, True, False),
        ({"trusted": True}, False, False),
        ({"transport": {"type": "stdio", "trusted": True}}, False, False),
    ],
)
def test_only_a_file_that_the_operator_names_makes_a_server_trusted(
    entry: dict[str, Any], by_operator: bool, expected: bool, tmp_path: Path
) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"a": {**COMMAND, **entry}}}))
    found = read_file(file, by_operator=by_operator)
    assert found.servers["a"].trusted is expected
    assert any("trusted has no effect" in text for text in found.warnings) is not by_operator


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            {"toolPrefix": "x", "cacheToolsList": False, "toolTexts": {"a": "b"}, "mode": "fast"},
            "keys that are not understood: toolPrefix, toolTexts, mode",
        ),
        ({"colour": "red", "_note": "x", "$schema": "x"}, "keys that are not understood: colour"),
        ({"timeout": 7_200}, "timeout 7200 is read as milliseconds"),
        ({"url": "https://example.org", "type": "stdio"}, "url is not used"),
        ({"tools": {"a": {"arguments": {"x": {"default": 1}}}}}, "tools.a.arguments"),
    ],
)
def test_what_does_not_matter_is_a_warning(entry: dict[str, Any], words: str) -> None:
    (warning,) = read_servers({"a": {"command": "x", **entry}}, "test").warnings
    assert warning.startswith("MCP server a: test: ")
    assert words in warning


@pytest.mark.parametrize(
    "entry",
    [
        {"include_tags": ["safe"]},
        {"readOnly": True},
        {"sandboxEnabled": True},
        {"toolsOnly": ["a"]},
        {"allowedDirectories": []},
        {"allowSampling": False},
        {"requireApproval": "always"},
        {"rateLimit": 5},
        {"policies": [{"inner": {"denied": ["a"]}}]},
        {"_extensions": {"denyResourcesOfTools": ["a"]}},
        {"_extensions": {"tools": {"allow": ["a"]}}},
        {"options": {"toolFilter": {"mode": "block", "list": ["a"]}}},
        {"tool_configuration": {"enabled": True, "allowed_tools": ["a"]}},
        {"tools": {"a": {"arguments": {"x": {"hide": True}}}}},
        {"command": {"path": "x", "restrictTo": "/x"}},
        {"selectedTools": ["a"]},
        {"tool_names": []},
        {"toolStates": {"a": False}},
        {"toolsConfig": {"a": {"active": False}}},
        {"maxTools": 1},
        {"toolset": "x"},
        {"noTools": True},
        {"paused": True},
        {"status": "disabled"},
    ],
)
def test_a_key_that_restricts_and_is_not_understood_is_an_error(entry: dict[str, Any]) -> None:
    reason = skipped(**{"command": "x", **entry})
    assert "seems to restrict the server, and is not understood" in reason


@pytest.mark.parametrize(
    "switch", [{"disabled": True}, {"enabled": False}, {"isActive": "false"}, {"startup": False}]
)
def test_an_entry_that_is_switched_off_is_not_used_whatever_else_it_has(
    switch: dict[str, Any],
) -> None:
    assert skipped(command="${NOT_SET}", **switch) == "it is disabled"


ENTRIES = {"a": COMMAND, "b": COMMAND}
FILES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"servers": ENTRIES, "inputs": [{"id": "x"}]}, {"a": set(), "b": set()}),
    ({"context_servers": {"a": {**COMMAND, "source": "custom"}}, "theme": "x"}, {"a": set()}),
    ({"mcp": {"servers": ENTRIES}}, {"a": set(), "b": set()}),
    ({"mcp": ENTRIES, "tools": {"a_x*": False, "b_*": False, "bash": False}},
     {"a": {"x*"}, "b": {"*"}}),
    ({"mcpServers": ENTRIES, "mcp": {"excluded": ["b"]}}, {"a": set()}),
    ({"mcpServers": ENTRIES, "mcp": {"allowed": ["b"]}}, {"b": set()}),
    ({"mcpServers": ENTRIES, "excludeMCPServers": ["a"]}, {"b": set()}),
    ({"mcpServers": ENTRIES, "disabled_servers": ["a"]}, {"b": set()}),
    ({"mcpServers": ENTRIES, "allowedServers": ["a*"]}, {"a": set()}),
    ({"context_servers": ENTRIES, "enable_language_server": False}, {"a": set(), "b": set()}),
    ({"mcpServers": [{"name": "a", **COMMAND}]}, {"a": set()}),
    ({"mcpServers": {"a": COMMAND}, "projects": {"HERE": {"mcpServers": {"b": COMMAND},
      "disabledMcpServers": ["a"]}, "/other": {"mcpServers": {"c": COMMAND}}}}, {"b": set()}),
    ({"projects": {"/other": {}}, "numStartups": 3}, {}),
    ({"a": COMMAND, "denied-mcp": COMMAND}, {"a": set(), "denied-mcp": set()}),
]  # fmt: skip


@pytest.mark.parametrize(("data", "expected"), FILES)
def test_files_of_editors_have_their_servers_where_editors_look(
    data: dict[str, Any], expected: dict[str, Any]
) -> None:
    data = json.loads(json.dumps(data).replace("HERE", str(Path.cwd())))
    found = read_servers(data, "test")
    assert {name: set(each.disabled_tools) for name, each in found.servers.items()} == expected


def test_a_file_that_restricts_its_servers_in_an_unknown_way_is_refused() -> None:
    restrictions: list[tuple[str, Any]] = [
        ("deniedMcpServers", [{"serverName": "a"}]),
        ("chat.mcp.enabled", False),
        ("security", {"blockMcp": True}),
        ("ignore-servers", ["a"]),
    ]
    for key, value in restrictions:
        with pytest.raises(ValueError, match="seems to restrict servers"):
            read_servers({"mcpServers": ENTRIES, key: value}, "test")


WHOLE_FILE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"disabled-servers": ["a"]}, {"b": set()}),
    ({"settings": {"excludeServers": ["a"]}}, {"b": set()}),
    ({"excludeTools": ["x"]}, {"a": {"x"}, "b": {"x"}}),
    ({"disabled_tools": ["a.x"]}, {"a": {"a.x", "x"}, "b": {"a.x"}}),
    ({"tools": {"exclude": ["x"], "b_y": False}}, {"a": {"x"}, "b": {"x", "y"}}),
    ({"permissions": {"deny": ["mcp__a__x", "mcp__b"], "allow": ["mcp__a"]}},
     {"a": {"mcp__a__x", "mcp__b", "x"}, "b": {"mcp__a__x", "mcp__b", "*"}}),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "expected"), WHOLE_FILE)
def test_what_a_file_says_of_all_its_servers_is_obeyed(
    rules: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = read_servers({"mcpServers": ENTRIES, **rules}, "test")
    assert {name: set(each.disabled_tools) for name, each in found.servers.items()} == expected


def test_of_equal_names_the_first_counts_also_where_it_is_not_used() -> None:
    entries = {"a": {**COMMAND, "disabled": True}, "A": COMMAND}
    first = read_servers({"mcpServers": entries}, "one")
    assert not first.servers
    assert not McpHub.from_files([first, read_servers({"a": COMMAND}, "two")]).servers


COMMENTS = """/* a * b */ { // "x
    "mcpServers": {"a": {"command": "x", /**/ "args": ["/* // */", "http://x",],},} /* } */
} /* to the end"""


def test_comments_and_last_commas_are_taken_out_and_texts_stay(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(COMMENTS)
    found = read_file(tmp_path / "mcp.json").servers
    assert found["a"].args == ("/* // */", "http://x")


VARIABLES: list[tuple[str, str]] = [
    ("${env:TOKEN}", "t0"),
    ("${TOKEN}", "t0"),
    ("Bearer ${TOKEN:-x}", "Bearer t0"),
    ("${GONE:-other}", "other"),
    ("${env:GONE:-other}", "other"),
    ("{env:TOKEN}", "t0"),
    ("Bearer $TOKEN", "Bearer t0"),
    ("pa$TOKEN", "pa$TOKEN"),
    ("$GONE ${", "$GONE ${"),
    ("${input:api-key}", "k1"),
    ("${input:place}", "here"),
    ("${workspaceFolder}/x", "FOLDER/x"),
    ("${TRICK}", "$${cred:a/b/c}"),
    ("${cred:a/b/c}", "${cred:a/b/c}"),
]
NOT_FILLED_IN = [
    "${GONE}",
    "${input:gone}",
    "${command:x}",
    "${{ secrets.X }}",
    "{file:x}",
    "${A:=b}",
]


@pytest.mark.parametrize(("text", "expected"), VARIABLES)
def test_variables_of_a_file_that_the_operator_names_are_filled_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    for name, value in (("TOKEN", "t0"), ("INPUT_API_KEY", "k1"), ("TRICK", "${cred:a/b/c}")):
        monkeypatch.setenv(name, value)
    path = tmp_path / ".vscode" / "mcp.json"
    path.parent.mkdir()
    inputs = [{"id": "place", "default": "here"}]
    entries = {"a": {"command": "x", "env": {"A": text}}}
    path.write_text(f"// VS Code's\n{json.dumps({'servers': entries, 'inputs': inputs})[:-1]},}}")
    found = read_file(path, by_operator=True)
    assert found.servers["a"].env["A"] == expected.replace("FOLDER", str(tmp_path))


@pytest.mark.parametrize("text", ["${env:TOKEN}", "${TOKEN:-x}", "${input:place}", "{env:TOKEN}"])
def test_a_file_that_nobody_named_gets_no_variable(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"a": {**URL, "headers": {"A": text}}}))
    (left_out,) = read_file(path).skipped
    assert "is not filled in here: write it out, or name the file with --config" in left_out.reason


@pytest.mark.parametrize("text", NOT_FILLED_IN)
def test_a_variable_that_is_not_known_leaves_its_entry_out(text: str) -> None:
    context = FileContext(Path("/x"), {})
    found = read_servers({"a": {"command": "x", "args": [text]}}, "test", context)
    assert "is not filled in" in found.skipped[0].reason


def test_an_input_may_be_empty_in_the_environment() -> None:
    context = FileContext(Path("/x"), {"INPUT_A": ""}, {"a": "default"})
    found = read_servers({"a": {"command": "x", "env": {"A": "${input:a}"}}}, "test", context)
    assert found.servers["a"].env == {"A": ""}


def test_an_env_file_that_cannot_be_looked_up_leaves_its_entry_out(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    long = {"command": "x", "envFile": "x" * 5_000}
    path.write_text(json.dumps({"a": long, "b": {"command": "x"}}))
    found = read_file(path)
    assert list(found.servers) == ["b"]
    assert found.skipped[0].name == "a"


def test_a_key_with_more_values_than_anybody_writes_restricts() -> None:
    entry = {"command": "x", "unknown": [0] * 10_000}
    found = read_servers({"a": entry}, "test", FileContext())
    assert '"unknown" seems to restrict the server' in found.skipped[0].reason


def test_an_env_file_is_read_beside_the_file_and_env_wins(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "\ufeff# a comment\nexport A=1 # one\nB='two # 2'\nC=\"x\\ny\"\n"
        "D=${cred:a/b/c}\nE=no\n=\nF\n"
    )
    entry = {"command": "x", "envFile": "${workspaceFolder}/.env", "env": {"E": "yes"}}
    path = tmp_path / "mcp.json"
    path.write_text(
        json.dumps(
            {
                "a": entry,
                "b": {**entry, "envFile": "gone"},
                "cwd": {"command": "./run", "cwd": "sub"},
            }
        )
    )
    found = read_file(path, by_operator=True)
    expected = {"A": "1", "B": "two # 2", "C": "x\ny", "D": "$${cred:a/b/c}", "E": "yes"}
    assert found.servers["a"].env == expected
    assert found.servers["cwd"].command == str(tmp_path / "sub" / "run")
    assert "it is no file" in found.skipped[0].reason
    (tmp_path / "gone").write_bytes(b"x" * (1024 * 1024 + 1))
    assert "larger than 1 MiB" in read_file(path, by_operator=True).skipped[0].reason


@pytest.mark.parametrize("part", ["/*", "//", '"', "${a", "{env:", ",  ", "\\"])
def test_a_text_of_repeated_beginnings_is_read_in_linear_time(tmp_path: Path, part: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(part * (1_000_000 // len(part)))
    with pytest.raises(ValueError, match=r"JSON|values"):
        read_file(path)
    path.write_text(json.dumps({"a": {"command": "x", "env": {"A": part * 100_000}}}))
    read_file(path, by_operator=True)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, 'must have either "command" or "url"'),
        ({"commnd": "x"}, 'must have either "command" or "url", not \'commnd\''),
        ({"command": "x", "args": "y"}, "args must be a list"),
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
        ({"command": "x", "env": {"A": [1]}}, "valid string"),
        ({"command": "x", "env": {"A": "b"}, "environment": {"A": "c"}}, 'has both "env" and'),
        ({"command": ["x"], "args": 1}, "args must be a list"),
        ({"command": "x", "enabled": "maybe"}, "enabled must be true or false"),
        ({"command": "x", "tools": "add"}, "tools must be a list of names"),
        ({"command": "x", "excludeTools": ["/^a/"]}, "is no name of a tool"),
        ({"command": "x", "tools": {"deny": ["b(*)"]}}, "is no name of a tool"),
        ({"command": "x", "tools": ["a"] * 1_001}, "tools has more than 1,000 names"),
        ({"command": "x", "tools": ["a?"] * 101}, "tools has more than 100 names with * or ?"),
        ({"command": "x", "timeout": "soon"}, "timeout must be a number"),
        ({"command": "x", "disabled": True}, "it is disabled"),
        ({"command": "x", "stateful": False}, "stateful must be true"),
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
        ('{"mcpServers": 5}', 'an object with "mcpServers"'),
        ('{"mcpServers": [{}]}', "each server of the list must have a name"),
        ('{"theme": "x"}', 'an object with "mcpServers"'),
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
