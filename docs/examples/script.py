from concurrent.futures import ThreadPoolExecutor

from toolbus.sync import RoomClient

with RoomClient(name="ann") as room:
    print(room.call("words.count", text="a b a"))
    print(room.invoke("words.count", {"text": "a b a"}, returns=dict[str, int], timeout_s=10))

    words = room.toolkit("words")
    print(words.count(text="a b a", top=1))

    with room.stream("words.count", {"text": "a"}) as chunks:
        for chunk in chunks:
            print(chunk.value)

    with ThreadPoolExecutor(8) as threads:
        texts = ["a", "a b", "a b a"]
        print(list(threads.map(lambda text: words.count(text=text), texts)))
