import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

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


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    Path("pets.yaml").write_text(DESCRIPTION.replace("PORT", str(server.server_port)))
    print(f"serving http://127.0.0.1:{server.server_port}/v1", flush=True)
    server.serve_forever()
