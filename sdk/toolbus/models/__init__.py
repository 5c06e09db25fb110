"""Models: the tools of a turn in the words of each provider, and what a model asked for back.

Each of the modules `openai_chat`, `openai_responses`, `anthropic`, `gemini` and `scripted` is an
`Adapter`: pure functions over the plain dicts that the API takes and gives. They import
no client, so that they serve any client. `open_model` makes a `Model`, which has an adapter
and asks a real API.

One step of an agent, with any of them:

    request = adapter.request(turn, conversation, instructions)   # tools, prompt and conversation
    reply = await model.reply(request)                            # the whole response, as a dict
    results = await turn.run(adapter.uses(reply))                 # one result for each use
    conversation += adapter.messages(reply, results)              # the reply verbatim, then results
"""

from typing import TYPE_CHECKING, Any

from toolbus.public_names import PublicNames

if TYPE_CHECKING:  # what type checkers read; `as` makes a name public for them
    from toolbus.models.adapter import Adapter as Adapter
    from toolbus.models.adapter import Model as Model
    from toolbus.models.endings import Ending as Ending
    from toolbus.models.model_error import ModelError as ModelError
    from toolbus.models.registry import open_model as open_model
    from toolbus.models.token_usage import TokenUsage as TokenUsage

_names = PublicNames(__name__)

__all__ = list(_names)


def __getattr__(name: str) -> Any:
    return _names.load(name)


def __dir__() -> list[str]:
    return _names.listed()
