"""Changing the arguments of a call in the terminal: one JSON object in an editor of some lines."""

from __future__ import annotations

from prompt_toolkit import PromptSession
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_input
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.validation import ValidationError, Validator

from toolbus.cli.arguments import read_json
from toolbus.untrusted_text import one_line

__all__ = ["edited_json"]


class _OneObject(Validator):
    """Accepts one JSON object, and nothing else."""

    def validate(self, document: Document) -> None:
        """Raise `ValidationError`, which is shown below the text."""
        try:
            value = read_json(document.text)
        except (ValueError, RecursionError) as error:
            place = getattr(error, "pos", 0)
            text = f"this is not JSON: {one_line(str(error), 200)}"
            raise ValidationError(place, text) from error
        if not isinstance(value, dict):
            raise ValidationError(0, "the arguments must be one JSON object")


async def edited_json(text: str) -> str | None:
    """Let a person change a text that is one JSON object; Ctrl-C leaves it as it is.

    Returns None if the person leaves the question.
    """
    session: PromptSession[str | None] = PromptSession(
        # Not a toolbar: a terminal that does not say where its cursor is shows none.
        "Change the arguments. Ctrl-S: done. Esc: back. Ctrl-C: as before.\n",
        # Its own: the table takes an Esc from the shared one that follows its last key soon.
        input=create_input(),
        key_bindings=_keys(),
        multiline=True,
        validator=_OneObject(),
        validate_while_typing=False,
    )
    try:
        return await session.prompt_async(default=text, handle_sigint=False)
    except (EOFError, KeyboardInterrupt):
        return ""


def _keys() -> KeyBindings:
    keys = KeyBindings()
    keys.add("c-s")(lambda event: event.current_buffer.validate_and_handle())
    # Eager: no Esc is the beginning of another key here, such as Esc and then Enter.
    keys.add("escape", eager=True)(lambda event: event.app.exit(result=None))
    return keys
