"""What the command line says about calls of hosted files, before they run."""

from __future__ import annotations

from pathlib import Path

from support.processes.command_line import CommandLine

RULES = """\
trusted_owners = ["bob"]

[[rule]]
behavior = "allow"
tool = "files"
match = "src/**"

[[rule]]
behavior = "deny"
tool = "files"
match = "*.lock"
"""


def test_a_rule_file_is_tried_on_files_of_a_host(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(RULES, encoding="utf-8")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "app.py").write_text("x\n", encoding="utf-8")
    (tmp_path / "a.lock").touch()
    (tmp_path / "link").symlink_to("a.lock")
    here = CommandLine(tmp_path)
    with here.serving() as (_, url), here.at(url).hosting("files", "--root", ".", "--name", "bob"):
        toolbus = here.at(url)

        def tried(tool: str, *arguments: str) -> str:
            command = ("permissions", "try", "rules.toml", tool, *arguments, "--room", "main")
            found = toolbus.run_here(*command)
            assert found.code == 0, found.err
            return found.out

        assert tried("files.write", "path=src/new.py", "text=x").startswith("allow: The rule allow")
        asked = tried("files.write", "path=docs/new.md", "text=x")
        assert asked.startswith("ask: No rule allows this call")
        assert 'allow files.write "docs/**" owner="bob"' in asked
        assert tried("files.read", "path=link").startswith('deny: The rule deny files "*.lock"')
        assert tried("files.read", "path=/etc/passwd").startswith("deny: files.read denies")
        assert tried("files.read", "path=rules.toml").startswith(
            "allow: files.read changes nothing"
        )
        assert tried("files.grep", "pattern=x").startswith('deny: The rule deny files "*.lock"')
        assert tried("files.grep", "pattern=x", "path=src").startswith("allow: files.grep changes")

        assessment = toolbus.value_here(
            "call", "files.write", "path=new/x.md", "text=x", "--assess", "--json"
        )
        assert assessment["within_workdir"] is True
        assert assessment["message"] == "makes `new/x.md`, with 1 line, and the folder `new`"
        assert assessment["preview"].startswith("--- /dev/null\n+++ new/x.md\n")
        assert not (tmp_path / "new").exists()
