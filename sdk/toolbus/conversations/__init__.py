"""Agents: participants that answer with a model and tools, each asker in a conversation of its own.

The way of one question:

    asker     NAME.ask(text, tools)                 a streaming call, like any other
    agent     AgentToolkit -> Agent.answer          the conversation of this asker
              Turn(context=...)                     the tools for this question, for the asker
              loop.answer                           model, tools, model, ... until it answers
    asker     events, then the end                  see `agent_events`

The call of the question carries deadline, cancellation, credit, principal and trace, so that an
agent needs no right to act for others, and agents can ask agents. `loop` is the loop alone, to be
copied; `state_store` keeps conversations over restarts; `model_calls` is what stands around each
request to a model.
"""

from typing import TYPE_CHECKING, Any

from toolbus.public_names import PublicNames

if TYPE_CHECKING:  # what type checkers read; `as` makes a name public for them
    from toolbus.conversations.agent import Agent as Agent
    from toolbus.conversations.agent_events import AgentEvent as AgentEvent
    from toolbus.conversations.conversation import (
        ConversationUnavailable as ConversationUnavailable,
    )
    from toolbus.conversations.loop import answer as answer
    from toolbus.conversations.model_calls import RESTART as RESTART
    from toolbus.conversations.model_calls import ModelCall as ModelCall
    from toolbus.conversations.model_calls import ModelMiddleware as ModelMiddleware
    from toolbus.conversations.model_calls import NextModel as NextModel
    from toolbus.conversations.model_middlewares import ModelBudget as ModelBudget
    from toolbus.conversations.model_middlewares import ModelLog as ModelLog
    from toolbus.conversations.model_middlewares import ModelRetry as ModelRetry
    from toolbus.conversations.state_store import SqliteStates as SqliteStates
    from toolbus.conversations.state_store import StateStore as StateStore
    from toolbus.conversations.state_store import StatesUnavailable as StatesUnavailable

_names = PublicNames(__name__)

__all__ = list(_names)


def __getattr__(name: str) -> Any:
    return _names.load(name)


def __dir__() -> list[str]:
    return _names.listed()
