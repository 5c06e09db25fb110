"""What a node asks of the user that it is in Redis: as an ACL rule, and as questions to Redis.

What scripts run is read from them; what `node.py` sends, and which keys there are, stands here. A
test lets nodes live under this rule alone. No command is tried out: `may.lua` asks, and reads of a
refusal what it was that lacked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from types import MappingProxyType

__all__ = ["Lack", "Question", "acl_rule", "lack_of", "questions"]

_SCRIPT = "EVALSHA 0000000000000000000000000000000000000000 1"
# By key, what is done to it; a * stands for the name of a node or a room.
_ON_KEYS = MappingProxyType(
    {
        "toolbus:nodes": (
            "EXISTS",
            "ZADD 0 m",
            "ZRANGE 0 -1",
            "ZRANGEBYSCORE 0 0",
            "ZREM m",
            "ZSCORE m",
        ),
        "toolbus:nodes:version": ("DEL", "GET", "INCR"),
        "toolbus:gone": ("EXISTS", "SADD m", "SMEMBERS", "SREM m"),
        "toolbus:tidying:*": ("DEL", "SET m"),
        "toolbus:revoked": ("EXPIRE 1", "SADD m", "SMEMBERS"),
        "toolbus:rooms": ("ZADD 0 m", "ZRANGEBYLEX - +", "ZREM m"),
        "toolbus:rooms:*": ("EXISTS", "SADD m", "SMEMBERS", "SREM m"),
        "toolbus:{r:*}:version": ("DEL", "GET", "INCR"),
        "toolbus:{r:*}:nodes": ("DEL", "SADD m", "SCARD", "SMEMBERS", "SREM m"),
        "toolbus:{r:*}:facts": ("DEL", "HDEL f", "HGET f", "HGETALL", "HKEYS", "HSET f v"),
        "toolbus:{r:*}:names": ("DEL", "HDEL f", "HGET f", "HINCRBY f 1", "HSET f v"),
        "toolbus:{r:*}:kept": ("DEL", "ZADD 0 m", "ZCOUNT 0 0", "ZRANGEBYSCORE 0 0", "ZREM m"),
    }
)
_SOME_KEY = "toolbus:nodes"
_INBOX = "toolbus:inbox:*"
_BESIDE = frozenset({"evalsha", "publish", "script|load", "subscribe", "time"})
_CALLED = re.compile(r"redis\.call\('(\w+)'")


@dataclass(frozen=True, slots=True)
class Question:
    """One command, as nodes run it."""

    words: tuple[str, ...]
    """The command; it names a node and a room that cannot be there."""
    about: str = ""
    """The pattern of its key or channel."""


@dataclass(slots=True)
class Lack:
    """What a user may not do that nodes do."""

    commands: set[str] = field(default_factory=set)
    """Commands, with `|` before a subcommand."""
    keys: set[str] = field(default_factory=set)
    """Patterns of keys."""
    channels: set[str] = field(default_factory=set)
    """Patterns of channels."""

    def add(self, refusal: str, question: Question) -> None:
        """Take note of what Redis says to a command that is refused."""
        command = question.words[0].lower()
        if "' command" in refusal:
            self.commands.add(command)
        elif "channel" in refusal:
            self.channels.add(question.about)
        elif " key" in refusal or command == "evalsha":  # what asks is itself run by it
            self.keys.add(question.about)
        else:
            self.commands.add(command)

    def __bool__(self) -> bool:
        return bool(self.commands or self.keys or self.channels)

    def __str__(self) -> str:
        parts = (
            ("may not run", sorted(each.replace("|", " ").upper() for each in self.commands)),
            ("may not touch the keys", sorted(self.keys)),
            ("may not use the channels", sorted(self.channels)),
        )
        return "; ".join(f"{words} {', '.join(these)}" for words, these in parts if these)


def questions() -> tuple[Question, ...]:
    """List every command with every key and channel that nodes use it with."""
    return tuple(_questions())


def _questions() -> Iterator[Question]:
    yield Question(("TIME",))
    yield Question(("PUBLISH", _INBOX.replace("*", "-"), "m"), _INBOX)
    for key, uses in _ON_KEYS.items():
        named = key.replace("*", "-")
        for use in uses:
            command, *rest = use.split()
            yield Question((command, named, *rest), key)
        yield Question((*_SCRIPT.split(), named), key)
    for command in sorted(_in_scripts() - _on_keys() - _BESIDE):
        # More words than it takes do no harm, and each of them may be a key.
        yield Question((command, *[_SOME_KEY] * 4), _SOME_KEY)


def _on_keys() -> set[str]:
    return {use.split()[0].lower() for uses in _ON_KEYS.values() for use in uses}


def _in_scripts() -> set[str]:
    """Find what the scripts run."""
    scripts = (files(__package__) / "scripts").iterdir()
    return {
        command.lower()
        for script in scripts
        for command in _CALLED.findall(script.read_text(encoding="utf-8"))
    }


def lack_of(answers: Sequence[bytes]) -> Lack:
    """Put together what Redis answered to all `questions`."""
    lack = Lack()
    for question, answer in zip(questions(), answers, strict=True):
        if answer:
            lack.add(answer.decode(errors="replace"), question)
    return lack


def acl_rule(user: str = "toolbus", *, has_database: bool = False) -> str:
    """Write the command that makes a user who may do what nodes do, and nothing else.

    Args:
        user: What it is called.
        has_database: Whether the nodes use another database than 0.
    """
    beyond = {"select"} if has_database else set()
    commands = sorted(_on_keys() | _in_scripts() | _BESIDE | beyond)
    return (
        f"ACL SETUSER {user} on >PASSWORD resetkeys ~toolbus:* resetchannels &toolbus:* -@all "
        + " ".join(f"+{each}" for each in commands)
    )
