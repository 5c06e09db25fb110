"""The rights that a node needs in Redis: as an ACL rule, and checked for the connected user.

Commands that scripts run are read from the scripts; other commands, keys and channels are listed
here. The check runs none of the commands: Redis itself answers whether the user may run them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

import msgpack
from redis.exceptions import NoPermissionError

__all__ = ["acl_rule", "missing_rights"]

_KEYS = (
    "toolbus:nodes",
    "toolbus:nodes:version",
    "toolbus:nodes:addresses",
    "toolbus:nodes:ended",
    "toolbus:nodes:cleanup:*",
    "toolbus:revoked",
    "toolbus:rooms",
    "toolbus:rooms:*",
    *(f"toolbus:{{r:*}}:{part}" for part in ("version", "nodes", "facts", "names", "kept")),
)
"""Patterns of keys; a * stands for the name of a node or a room."""
_INBOX = "toolbus:inbox:*"
_ON_CHANNELS = {"publish", "subscribe"}
_SENT = {"del", "evalsha", "expire", "sadd", "script|load", "smembers", "srem", "zrange"}
"""Commands on keys that a node sends itself, with `|` before a subcommand."""
_CALL = re.compile(r"redis\.call\('(\w+)'")


def acl_rule(user: str = "toolbus", *, has_database: bool = False) -> str:
    """Build the command that creates a user with exactly the rights that a node needs.

    Args:
        user: The user's name.
        has_database: Whether the nodes use another database than 0.
    """
    database = {"select"} if has_database else set()
    commands = sorted(_script_commands() | _ON_CHANNELS | _SENT | database)
    return (
        f"ACL SETUSER {user} on >PASSWORD resetkeys ~toolbus:* resetchannels &toolbus:* -@all "
        + " ".join(f"+{command}" for command in commands)
    )


async def missing_rights(run: Callable[..., Awaitable[Any]]) -> list[str]:
    """List the rights that the connected user lacks; `run` runs a command and returns the reply.

    Where keys are missing, only keys are listed: Redis refuses each command on such a key too.

    Raises:
        redis.exceptions.ResponseError: Redis runs no script of this user for another reason.
    """
    rights = _rights()
    questions = [msgpack.packb(command, use_bin_type=False) for command in rights.values()]
    source = (files("toolbus_server.cluster") / "scripts" / "check_rights.lua").read_bytes()
    try:
        script = await run("SCRIPT", "LOAD", source)
        answers = await run("EVALSHA", script, 0, *questions)
    except NoPermissionError as error:
        return [str(error)]
    missing = [right for right, answer in zip(rights, answers, strict=True) if not answer]
    return [right for right in missing if right.startswith("key ")] or missing


def _rights() -> dict[str, tuple[str, ...]]:
    """Describe each right, with a command that needs it."""
    rights: dict[str, tuple[str, ...]] = {
        f"key {key}": ("EVALSHA", "0" * 40, "1", key.replace("*", "-")) for key in _KEYS
    }
    for command in sorted(_ON_CHANNELS):
        rights[f"{command.upper()} {_INBOX}"] = (command, _INBOX.replace("*", "-"))
    for command in sorted(_script_commands() | _SENT):
        # Redis ignores arguments beyond the command's own, and each argument may be its key.
        rights[command.upper()] = (*command.split("|"), *[_KEYS[0]] * 4)
    return rights


def _script_commands() -> set[str]:
    scripts = (files("toolbus_server.cluster") / "scripts").iterdir()
    return {
        command.lower()
        for script in scripts
        for command in _CALL.findall(script.read_text(encoding="utf-8"))
    }
