import os

from toolbus import Agent, open_model

helper = Agent(
    None,  # `run` joins a room
    open_model(os.environ["MODEL"]),
    name="chatbot",
    instructions="Answer briefly.",
    required=["words"],
)

if __name__ == "__main__":
    helper.toolkit.run()
