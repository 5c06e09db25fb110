import asyncio

from toolbus import RoomException
from toolbus_server.testing import FaultProxy, Faults, running_server
from words import words


async def main() -> None:
    async with (
        running_server() as server,
        FaultProxy(server.url) as proxy,
        server.room("host", via=proxy) as host,
        host.host(words),
        server.room("ann") as ann,
    ):
        proxy.to_participant = Faults(latency_s=0.2, slice_bytes=1)  # slow on the way to the host
        print(await ann.call("words.count", text="a b a"))
        proxy.to_server = Faults(lost=True)  # the host's answers are lost
        try:
            await ann.invoke("words.count", {"text": "a b a"}, timeout_s=1)
        except RoomException as error:
            print(f"{error.code}, executed: {error.executed}")


asyncio.run(main())
