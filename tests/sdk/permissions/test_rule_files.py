"""Rule files: what they say, and which mistakes are refused with their line."""

from __future__ import annotations

import tomllib
from pathlib import Path

import jsonschema_rs
import pytest

from toolbus import Permissions, Rule, RuleFileError
from toolbus.permissions.rule_file import rule_file_schema
from toolbus.permissions.toml_file import MAX_FILE_BYTES

FULL = """\
mode = "accept_edits"            # default, explore, bypass, dont_ask
workdirs = [".", "/srv/data"]
trusted_owners = ["files", "b/ops"]

[[rule]]
behavior = "allow"
tool = "shell.run"
match = "git status:*"
owner = "ops"
principal = "a/ann"
caller = "bob"

[[rule]] # a whole toolkit
behavior = "deny"
tool = "github"

[[rule]]
behavior = "ask"
"""


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "rules.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("before", [b"", "\ufeff".encode()], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_file_says_the_same_as_a_program(tmp_path: Path, before: bytes, line_end: str) -> None:
    path = written(tmp_path, before + FULL.replace("\n", line_end).encode())
    whole = Rule(
        behavior="allow",
        tool="shell.run",
        match="git status:*",
        owner="ops",
        principal="a/ann",
        caller="bob",
    )
    rules = [whole, Rule(behavior="deny", tool="github"), Rule(behavior="ask")]
    found = Permissions.from_toml(path)
    assert found == Permissions(
        "accept_edits",
        rules,
        workdirs=[str(tmp_path), "/srv/data"],
        trusted_owners=["files", "b/ops"],
    )
    assert [rule.origin for rule in found.rules] == [f"{path}:{line}" for line in (5, 13, 17)]
    assert Permissions.from_toml(str(written(tmp_path, ""))) == Permissions()


def test_workdirs_are_relative_to_the_file_and_to_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ann")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "rules.toml").write_text('workdirs = ["src", "~/notes"]')
    found = Permissions.from_toml("sub/rules.toml")
    assert found.workdirs == (str(tmp_path / "sub" / "src"), "/home/ann/notes")


RULE = '[[rule]]\nbehavior = "allow"\n'
INLINE = 'rule = [ # [[rule]]\n  { behavior = "deny", tool = "x" },\n\n  {%s},\n]\n'
LONG = "x" * 4_097
# The text, the line of the mistake, words that say what to write, and whether the schema cannot
# say it.
BAD: list[tuple[str, int, str, bool]] = [
    ("mod = 'default'", 1, "unknown key 'mod': did you mean mode?", False),
    ("\n[[rules]]\nbehavior = 'ask'", 2, "did you mean rule?", False),
    ("behavior = 'ask'", 1, "write it below a line [[rule]]", False),
    (f"{RULE}trusted_owners = []", 3, "write it above the first [[rule]]", False),
    (f"{RULE}colour = 1", 3, "there are behavior, tool, match, owner, principal, caller", False),
    (f"{RULE}mtach = 'x'", 3, "did you mean match?", False),
    ("x = '''\n[[rule]]'''\nmode = 1", 1, "unknown key 'x'", False),
    ("# [[rule]]\nmode = 1", 2, 'mode must be text, not a number: write it in quotes', False),
    ("mode = 'acept_edits'", 1, "did you mean accept_edits?", False),
    ("mode = ''", 1, "mode must be default, accept_edits, explore, bypass or dont_ask", False),
    ("workdirs = '.'", 1, 'workdirs must be a list, not text: write workdirs = ["..."]', False),
    ("workdirs = [\n'.',\n# no\n1]", 4, "each of workdirs must be text, not a number", False),
    ("workdirs = ['.',\n '']", 2, "workdirs: '' is no path", False),
    ('workdirs = ["a\\u0000"]', 1, "is no path", False),
    ("workdirs = ['~nobody-of-this-name/x']", 1, "workdirs: ", True),
    ("trusted_owners = ['ops',\n' x']", 2, "must not begin or end with a space", False),
    ("trusted_owners = [true]", 1, "each of trusted_owners must be text, not a boolean", False),
    ("trusted_owners = ['\u0430lice']", 1, "several scripts", True),
    ("rule = 'x'", 1, "rule must be a list, not text: write [[rule]]", False),
    ("\n[rule]\nbehavior = 'ask'", 2, "rule must be a list, not a table", False),
    ("rule = [1]", 1, "a rule must be a table, not a number", False),
    ("[[rule]]\n[[rule]]\ntool = 'x'", 1, "a rule must have behavior =", False),
    (f"{RULE}\n[[rule]] # b\ntool = 'x'", 4, "a rule must have behavior =", False),
    (f"{RULE}[[rule]]\nbehavior = 'alow'", 4, "behavior must be allow, ask or deny", False),
    (f"{RULE}tool = 'a.b.c'", 3, "is not a tool pattern", False),
    (f"{RULE}tool = 'a**'", 3, "is not a tool pattern", False),
    (f"{RULE}tool = 1979-05-27", 3, "tool must be text, not a date or time", True),
    (f"{RULE}match = ''", 3, "a rule without match covers every call of its tool", False),
    (f"{RULE}match = '{LONG}'", 3, "match must be text of 1 to 4096 characters", False),
    (f"{RULE}match = ['a']", 3, "match must be text, not a list", False),
    (f"{RULE}owner = ''", 3, "owner must be text of 1 to 512", False),
    (f"{RULE}principal = 'a  b'", 3, "principal must not begin", False),
    (f'{RULE}caller = "a\\u0007"', 3, "caller must be printable", False),
    (f"{RULE}caller = '{'a' * 513}'", 3, "caller must be text of 1 to 512", True),
    (f"{RULE}match = '''\n[[rule]]\nx'''\ntool = '-'", 6, "is not a tool pattern", False),
    (INLINE % 'behavior = "deny",  tools = "x"', 4, "did you mean tool?", False),
    (INLINE % "tool = 'x'", 4, "a rule must have behavior =", False),
    (INLINE % "behavior = 'deny', owner.name = 'x'", 4, "owner must be text, not a table", False),
    ("rule.tool = 'x'", 1, "rule must be a list, not a table", False),
    (f"{RULE}[rule.owner]\nname = 'ops'", 3, "owner must be text, not a table", False),
    (RULE * 10_001, 20_001, "rule may be given 10,000 times at most", False),
    ("mode = 'default'\nmode = 'bypass'", 2, "this is not TOML: Cannot overwrite a value", True),
    ("mode = 'default'\n\n[[rule", 3, "this is not TOML", True),
    ("mode = \x1b[2J", 1, "this is not TOML", True),
    ("a = " + "[" * 20_000, 0, "too deeply nested", True),
    ("a" + ".a" * 90 + " = 1", 1, "unknown key 'a'", False),
    ("x = '...'\na" + ".'.'" * 1_000_000 + " = 1", 2, "a key has more than 100 parts", True),
    (f"{RULE}match = '{'.' * 200}'\ntool = '*.'", 4, "is not a tool pattern", False),
    (f"{RULE}owner = '*'", 3, "owner must be one name: leave it out to mean everybody", False),
    ("trusted_owners = ['b/*']", 1, "must be one name", False),
    ("mode = " + "9" * 9_000, 0, "cannot be read as TOML", True),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "words", "only_when_read"), BAD)
def test_a_mistake_is_refused_with_its_line_and_what_to_write(
    tmp_path: Path, text: str, line: int, words: str, only_when_read: bool
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(RuleFileError) as caught:
        Permissions.from_toml(path)
    assert caught.value.line == line, caught.value
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{line}: " if line else f"{path}: ")
    assert str(caught.value).isprintable()
    if not only_when_read:
        assert not jsonschema_rs.is_valid(rule_file_schema(), tomllib.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        FULL,
        "",
        "mode = 'explore'",
        "rule = []",
        INLINE % "behavior = 'allow'",
        "trusted_owners = ['x*', 'svc:web/7', 'corp/\u043c\u0430\u0440\u0438\u044f', 'a b']",
        *(
            f"{RULE}tool = '{tool}'"
            for tool in ("*", "a*b*.c*D_-", "*.*", "a" * 64 + "." + "b" * 64)
        ),
        f"{RULE}match = '{LONG[1:]}'",
        RULE * 10_000,
    ],
)
def test_the_schema_accepts_what_can_be_read(tmp_path: Path, text: str) -> None:
    """With 10,000 rules, too."""
    Permissions.from_toml(written(tmp_path, text))
    jsonschema_rs.validate(rule_file_schema(), tomllib.loads(text))


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (b"mode = 'default'\n# \xff", 2, "not text in UTF-8"),
        (b"#" * (MAX_FILE_BYTES + 1), 0, "larger than 4,194,304 bytes"),
    ],
)
def test_a_file_that_is_no_text_is_refused(
    tmp_path: Path, data: bytes, line: int, words: str
) -> None:
    with pytest.raises(RuleFileError, match=words) as caught:
        Permissions.from_toml(written(tmp_path, data))
    assert caught.value.line == line


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    for path, words in [
        (tmp_path / "missing.toml", "No such file"),
        (tmp_path, "no regular file"),
        (Path("/dev/zero"), "no regular file"),
        (Path("a\0b"), "null byte"),
        (Path("a" * 5_000), "too long"),
    ]:
        with pytest.raises(RuleFileError, match=words) as caught:
            Permissions.from_toml(path)
        assert caught.value.line == 0


HARD = """\
# [[rule]]
"mode" = "default" # "
workdirs = [ # ]
  ".", "\\"[[rule]]", '''
[[rule]]''''',
  "{",
]
[[rule]]
  match = \"""
[[rule]]
a = "\\""\" \\\\\"""
  behavior = "allow" # ]]
[[ rule ]]
match = "# no comment [[rule]]"
"behavior" = 'ask'
	[[ rule]]
match = '''x''
[[rule]]''''
behavior = "deny"
"""


def test_rules_are_found_in_their_lines(tmp_path: Path) -> None:
    """Whatever strings, comments and brackets are around them."""
    path = written(tmp_path, HARD)
    rules = Permissions.from_toml(path).rules
    assert [rule.origin for rule in rules] == [f"{path}:{line}" for line in (8, 13, 16)]
    inline = written(tmp_path, INLINE % 'behavior = "ask", match = "}{"')
    assert [rule.origin for rule in Permissions.from_toml(inline).rules] == [
        f"{inline}:{line}" for line in (2, 4)
    ]


@pytest.mark.parametrize(
    ("mistake", "line", "words"),
    [
        ("match = 1", 20, "match must be text"),
        ("\n'colour' = 1", 21, "unknown key 'colour'"),
        ("[[rule]]\nmatch = 'x'", 20, "a rule must have behavior"),
        ('[[rule]]\nbehavior = \'ask\'\nmatch = """\\\n\n  """', 22, "a rule without match"),
    ],
)
def test_a_mistake_is_found_below_such_lines(
    tmp_path: Path, mistake: str, line: int, words: str
) -> None:
    hard = HARD.replace("match = '''x''\n[[rule]]''''", "owner = '''x'''\n")
    with pytest.raises(RuleFileError, match=words) as caught:
        Permissions.from_toml(written(tmp_path, hard + mistake))
    assert caught.value.line == line
