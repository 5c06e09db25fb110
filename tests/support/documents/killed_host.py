"""The picture of a host that is killed during a call: what real processes print, as an SVG.

`PYTHONPATH=tests .venv/bin/python -m support.documents.killed_host` draws it again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape, unescape
from pathlib import Path
from tempfile import TemporaryDirectory

from support.documents.pages import DOCS
from support.documents.terminals import Service, Terminals
from support.patience import PATIENCE_S

PICTURE = DOCS / "killed-host.svg"

_TITLE = "A host is killed with SIGKILL during a call"
_SHOP = '''
import asyncio
from pathlib import Path

from toolbus import Toolkit, tool


@tool
async def charge(order: int) -> str:
    """Charge the card of an order."""
    print(f"charging the card of order {order}", flush=True)
    await asyncio.Event().wait()


@tool(idempotent=True)
async def total(order: int) -> float:
    """Add up an order."""
    print(f"adding up order {order}", flush=True)
    while not Path("prices").exists():
        await asyncio.sleep(0.05)
    return 17.5


shop = Toolkit("shop", [charge, total])
'''
_CHAR, _LINE, _MARGIN = 7.8, 19, 16
_escaped = partial(escape, quote=False)
_COLOURS = (
    (re.compile(r"#"), "#9da7b3"),
    (re.compile(r"\$"), "#ffffff"),
    (re.compile(r".*(host_lost|Killed)"), "#ff9492"),
    (re.compile(r".*executed=yes"), "#7ee787"),
)
"""The first that matches a line; each has a contrast of at least 7:1 on the background."""
_DRAWING = re.compile(r"[#$|━─│├└]")
"""What a screen reader need not spell."""
_SPACE = "\N{NO-BREAK SPACE}"
"""Browsers join others, whatever `xml:space` says of them."""
_TEXT = re.compile(r"<text [^>]*>(.*)</text>")


def play(folder: Path, variables: Mapping[str, str]) -> list[str]:
    """Kill two hosts, each during a call; return what a person at the terminals sees."""
    (folder / "shop.py").write_text(_SHOP, encoding="utf-8")
    with Terminals(folder, variables) as terminals:
        server = terminals.start("toolbus serve --dev --port 0", ())
        listening = server.wait_for(re.compile(r"listening on (ws://\S+)"))
        terminals.variables["TOOLBUS_URL"] = listening[1]

        host = _host(terminals)
        charge = terminals.start("toolbus call shop.charge order=42", ())
        host.wait_for(re.compile("charging"))
        host.process.kill()
        lines = [
            "# A host, and kill -9 while its tool runs:",
            *_shown(host),
            "Killed",
            "",
            "# Is the card charged? Nobody can know: the error says so, and nothing is retried:",
            *_shown(charge),
            "",
        ]
        host = _host(terminals)
        total = terminals.start("toolbus call --trace shop.total order=42", ())
        host.wait_for(re.compile("adding"))
        _host(terminals)
        host.process.kill()
        (folder / "prices").touch()
        return [
            *lines,
            "# A tool that is declared idempotent is called again, at another host:",
            *_shown(total),
        ]


def _host(terminals: Terminals) -> Service:
    host = terminals.start("toolbus host shop:shop", ())
    host.wait_for(re.compile("hosting shop"))
    return host


def _shown(service: Service) -> list[str]:
    """Return a command and what it printed, but the id of a trace and notes about it."""
    printed = service.printed_until_end(PATIENCE_S).splitlines()
    left_out = ("trace ", "  note: ")
    return [f"$ {service.command}", *(line for line in printed if not line.startswith(left_out))]


def drawn(lines: Sequence[str]) -> str:
    """Draw lines as an SVG that has its own background, no fonts and no scripts."""
    columns = max(map(len, lines))
    width, height = round(columns * _CHAR + 2 * _MARGIN), len(lines) * _LINE + 2 * _MARGIN
    texts = [
        f'<text x="{_MARGIN}" y="{_MARGIN + 14 + row * _LINE}" fill="{_colour(line)}" '
        f'textLength="{len(line) * _CHAR:.0f}">{_escaped(line).replace(" ", _SPACE)}</text>'
        for row, line in enumerate(lines)
        if line
    ]
    described = _escaped(" ".join(_DRAWING.sub(" ", " ".join(lines)).split()))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            'aria-labelledby="title described">',
            f'<title id="title">{_TITLE}</title>',
            f'<desc id="described">{described}</desc>',
            f'<rect width="{width}" height="{height}" rx="8" fill="#161b22"/>',
            '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" '
            'font-size="13">',
            *texts,
            "</g>",
            "</svg>",
            "",
        ]
    )


def lines_of(picture: str) -> list[str]:
    """Read the lines from a picture, without those that are empty."""
    return [unescape(text).replace(_SPACE, " ") for text in _TEXT.findall(picture)]


def _colour(line: str) -> str:
    return next((colour for start, colour in _COLOURS if start.match(line)), "#d1d7e0")


if __name__ == "__main__":
    with TemporaryDirectory() as work:
        here = os.environ | {"TOOLBUS_HOME": f"{work}/home", "LOGNAME": "you", "COLUMNS": "200"}
        PICTURE.write_text(drawn(play(Path(work), here)), encoding="utf-8")
