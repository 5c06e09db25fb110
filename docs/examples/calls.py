import asyncio

from toolbus import RoomClient


async def main() -> None:
    async with RoomClient(name="ann") as room:
        print(await room.call("words.count", text="a b a"))
        print(await room.call("words.count", {"text": "a b a"}))

        print(await room.invoke("words.count", {"text": "a b a"}, timeout_s=10))
        print(await room.invoke("words.count", {"text": "a b a"}, returns=dict[str, int]))

        words = await room.toolkit("words")
        print(await words.count(text="a b a", top=1))
        print(await words.count({"text": "a b a", "top": 1}))
        print(await words.with_options(timeout_s=10, retry=False).count(text="a"))

        chunk = await room.invoke("words.count", {"text": "a"}, pin=words.info.digest)
        print(chunk.value)

        async for toolkit in room.toolkits(search="words"):
            print(toolkit.name, toolkit.tools, toolkit.hosts)

        plan = await room.explain("words.count", {"text": "a"})
        print(plan.would_run, plan.hosts, plan.host and plan.host.name)


asyncio.run(main())
