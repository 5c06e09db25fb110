from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient

from toolbus import RoomClient, RoomException


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, RoomClient]]:
    async with RoomClient(name="web", wait=30) as room:
        yield {"room": room}


app = FastAPI(lifespan=lifespan)


@app.get("/count")
async def count(request: Request, text: str) -> dict[str, int]:
    room: RoomClient = request.state.room
    return await room.invoke("words.count", {"text": text}, returns=dict[str, int], timeout_s=5)


@app.exception_handler(RoomException)
async def failed(_: Request, error: RoomException) -> JSONResponse:
    status = 503 if error.retryable else 502
    return JSONResponse({"error": error.code, "executed": error.executed}, status)


if __name__ == "__main__":  # elsewhere: uvicorn web_fastapi:app
    with TestClient(app) as http:
        print(http.get("/count", params={"text": "a b a"}).json())
