import asyncio
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from toolbus import ToolContext
from toolbus_toolkits.openapi import ApiOptions, OpenApiToolkit

DESCRIPTION = """
openapi: 3.1.0
info: {title: Pets, version: "1"}
servers: [{url: "http://127.0.0.1:PORT/v1"}]
paths:
  /pets/{name}:
    get:
      operationId: getPet
      summary: Look up a pet.
      tags: [read]
      parameters:
        - {name: name, in: path, required: true, schema: {type: string}}
        - {name: fields, in: query, schema: {type: array, items: {type: string}}}
"""


class Api(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"target": self.path}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def serve() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    Thread(target=server.serve_forever, daemon=True).start()
    Path("pets.yaml").write_text(DESCRIPTION.replace("PORT", str(server.server_port)))


async def main() -> None:
    options = ApiOptions(allow_private=True)
    pets = OpenApiToolkit.from_file("pets.yaml", tags=["read"], options=options)
    arguments = {"name": "../admin?x", "fields": ["age", "owner"]}
    print((await pets.execute(ToolContext(), "getPet", arguments)).value)


if __name__ == "__main__":
    serve()
    asyncio.run(main())
