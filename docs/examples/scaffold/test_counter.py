from pathlib import Path

from toolbus import open_model

from counter import make_agent


def test_words_are_counted_by_the_tool() -> None:
    replies = Path(__file__).with_suffix(".jsonl")
    agent = make_agent(open_model(f"scripted:{replies}"))
    answer = agent.run_sync("How many words: the cat and the hat")
    assert [(result.tool, result.value) for result in answer.results] == [
        ("words.count", 5)
    ]
    assert answer.text == "5 words."
