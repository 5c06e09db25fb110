from flask import Flask, request

from toolbus import RoomException
from toolbus.sync import RoomClient


def create_app() -> Flask:
    app = Flask(__name__)
    room = RoomClient(name="web", wait=30).connect()

    @app.get("/count")
    def count() -> dict[str, int]:
        return room.invoke(
            "words.count", {"text": request.args["text"]}, returns=dict[str, int], timeout_s=5
        )

    @app.errorhandler(RoomException)
    def failed(error: RoomException) -> tuple[dict[str, str], int]:
        return {"error": error.code, "executed": error.executed}, 503 if error.retryable else 502

    return app


if __name__ == "__main__":  # elsewhere: gunicorn --threads 16 "web_flask:create_app()"
    with create_app().test_client() as http:
        print(http.get("/count", query_string={"text": "a b a"}).json)
