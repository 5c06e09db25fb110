"""Agents: participants that answer with a model and tools, each asker in a conversation of its own.

The way of one question:

    asker     NAME.ask(text, tools)                 a streaming call, like any other
    agent     AgentToolkit -> Agent.run_stream_events  the conversation of this asker
              Turn(context=...)                     the tools for this question, for the asker
              agent_loop                            model, tools, model, ... until it answers
    asker     events, then the end                  see `agent_events`

The call of the question carries deadline, cancellation, credit, principal and trace, so that an
agent needs no right to act for others, and agents can ask agents. `loop` is the loop alone, to be
copied; `state_store` keeps conversations over restarts; `model_requests` is what stands around each
request to a model.
"""

from typing import TYPE_CHECKING, Any

from toolbus.public_names import PublicNames

if TYPE_CHECKING:  # what type checkers read; `as` makes a name public for them
    from toolbus.agents.agent import Agent as Agent
    from toolbus.agents.agent import RunResult as RunResult
    from toolbus.agents.agent_events import AgentEvent as AgentEvent
    from toolbus.agents.conversation import (
        ConversationUnavailable as ConversationUnavailable,
    )
    from toolbus.agents.loop import agent_loop as agent_loop
    from toolbus.agents.model_middlewares import ModelBudget as ModelBudget
    from toolbus.agents.model_middlewares import ModelLog as ModelLog
    from toolbus.agents.model_middlewares import ModelRetries as ModelRetries
    from toolbus.agents.model_requests import RESTART as RESTART
    from toolbus.agents.model_requests import CallNextModel as CallNextModel
    from toolbus.agents.model_requests import ModelMiddleware as ModelMiddleware
    from toolbus.agents.model_requests import RequestToModel as RequestToModel
    from toolbus.agents.state_store import SqliteStateStore as SqliteStateStore
    from toolbus.agents.state_store import StateStore as StateStore
    from toolbus.agents.state_store import StateStoreUnavailable as StateStoreUnavailable

_names = PublicNames(__name__)

__all__ = list(_names)


def __getattr__(name: str) -> Any:
    return _names.load(name)


def __dir__() -> list[str]:
    return _names.listed()
