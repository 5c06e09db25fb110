from toolbus import Agent, open_model
from words import words


def test_helper_counts_words() -> None:
    agent = Agent(None, open_model("scripted:replies.jsonl"), always=[words])
    answer = agent.run_sync("Which word is the most frequent one: the cat and the hat")
    assert [(result.tool, result.state) for result in answer.results] == [("words.count", "ok")]
    assert answer.text == "The most frequent word is 'the'."
