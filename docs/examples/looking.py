import asyncio
from pathlib import Path

from toolbus import Turn
from toolbus_toolkits.files import Files
from toolbus_toolkits.lsp import Lsp

PRICES = "def total(prices: list[int]) -> int:\n    return sum(prices)\n"
SHOP = "from prices import total\n\nprint(total([3, 4]))\n"


async def main(folder: Path) -> None:
    async with Turn(None, always=[Lsp(folder), Files(folder)]) as turn:
        (total,) = (await turn.call("lsp.symbols", query="total"))["symbols"]
        print(f"{total['kind']} {total['name']} in {total['path']}, line {total['line']}")

        place = {name: total[name] for name in ("path", "line", "column")}
        for use in (await turn.call("lsp.references", **place))["locations"]:
            print(f"{use['path']}:{use['line']}: {use['text']}")

        await turn.call("files.read", path="shop.py")
        await turn.call("files.edit", path="shop.py", old_text="[3, 4]", new_text="'34'")
        for found in (await turn.call("lsp.diagnostics", path="shop.py"))["diagnostics"]:
            print(f"{found['severity']} in line {found['line']}: {found['code']}")


project = Path("project")
project.mkdir(exist_ok=True)
(project / "prices.py").write_text(PRICES)
(project / "shop.py").write_text(SHOP)
asyncio.run(main(project))
