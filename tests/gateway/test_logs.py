"""What the log of a gateway does not contain."""

from __future__ import annotations

import logging

import pytest

from gateway.conftest import REVISIONS, running_gateway
from toolbus import Toolkit, tool
from toolbus.log_output import LogOutput


@tool
async def double(text: str) -> str:
    return text * 2


@pytest.mark.parametrize("level", [logging.DEBUG, 5], ids=["DEBUG", "TRACE"])
@pytest.mark.parametrize("mode", REVISIONS)
async def test_neither_tokens_nor_arguments_nor_results_are_logged(
    mode: str, level: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with LogOutput(level=level).running():
        async with running_gateway() as door, door.server.room("host") as host:
            async with host.host(Toolkit("words", [double])), door.client(mode) as client:
                await client.call_tool("words__double", {"text": "zzyzx"})
    log = capsys.readouterr().err
    assert "hosting toolkit words" in log
    assert not [line for line in log.splitlines() if "zzyzx" in line or "Bearer" in line]
