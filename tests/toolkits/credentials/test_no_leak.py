"""A hosted toolkit that fails with a credential leaves it in no log, record, file or error."""

from __future__ import annotations

from pathlib import Path

from support.processes.command_line import CommandLine
from toolbus_toolkits.credentials.encrypted_file import create_key_file

SECRET = "tops3cret-value"
TOOLS = """
import logging
from toolbus import ToolFailed, Toolkit, tool
from toolbus_toolkits.credentials import CredentialStore
from toolbus_toolkits.credentials.references import CredentialResolver, RedactingFilter

resolver = CredentialResolver(CredentialStore.open())

@tool
def fail(host: str, redact: bool) -> str:
    text = resolver.for_host("refused ${cred:a/b/c}", host)
    logging.getLogger("leaky").error("sent %s", text)
    if redact:
        raise ToolFailed(resolver.redact(text))
    raise RuntimeError(text)

leaky = Toolkit("leaky", [fail])
leaky.log_filters = [RedactingFilter(resolver)]
"""


def test_value_is_in_nothing_that_a_failing_toolkit_leaves(tmp_path: Path) -> None:
    create_key_file(tmp_path / "key")
    (tmp_path / "leaky_tools.py").write_text(TOOLS, encoding="utf-8")
    variables = {
        "TOOLBUS_CREDENTIALS_KEY_FILE": str(tmp_path / "key"),
        "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
    }
    here = CommandLine(tmp_path, variables)
    command = ("credential", "set", "a/b/c", "--stdin", "--host", "api.example.org")
    (tmp_path / "run.py").write_text(
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-m', 'toolbus', *{command!r}],"
        " input=b'tops3cret' + b'-value', check=True)\n",
        encoding="utf-8",
    )
    with here.running("run.py") as setting:
        assert setting.ended().code == 0
    with here.serving() as (server, url):
        there = here.at(url)
        with there.hosting("leaky_tools:leaky", "--name", "bob", "--records") as host:
            redacted = there.run("call", "leaky.fail", "host=api.example.org", "redact=true")
            hidden = there.run("call", "leaky.fail", "host=api.example.org", "redact=false")
            refused = there.run("call", "leaky.fail", "host=example.net", "redact=true")
            host.process.terminate()
            log = host.ended()
        server.process.terminate()
        ends = [redacted, hidden, refused, log, server.ended()]
    assert "refused [credential a/b/c]" in redacted.err
    assert "sent refused [credential a/b/c]" in log.err
    assert "RuntimeError: refused [credential a/b/c]" in log.err
    assert "may not go to the host" in refused.err
    assert all(SECRET not in each.out + each.err for each in ends)
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert tmp_path / "home" / "records.db" in files
    assert all(SECRET.encode() not in each.read_bytes() for each in files)
