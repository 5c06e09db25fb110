/** The page around room.js: sends the typed values to the room and shows the replies as text. */

import { join } from "./room.js";

const byId = (id) => document.getElementById(id);
let room = null;
let cancelling = null;

function show(id, value) {
  const text = typeof value === "string" ? value : JSON.stringify(value, plain, 2);
  byId(id).textContent = text;
}

/** Values that JSON cannot express: integers beyond 2^53, and bytes. */
function plain(_key, value) {
  if (typeof value === "bigint") return String(value);
  return value instanceof Uint8Array ? `${value.length} bytes` : value;
}

function showClosed({ name, code, message }) {
  room = null;
  byId("inside").disabled = true;
  show("state", name === "RoomClosed" ? `closed ${code}: ${message}` : `${name}: ${message}`);
}

function onSubmit(id, action) {
  byId(id).addEventListener("submit", (event) => {
    event.preventDefault();
    action(Object.fromEntries(new FormData(event.target)));
  });
}

onSubmit("join", async ({ url, name, token }) => {
  room?.close();
  show("welcome", "");
  show("state", "joining");
  try {
    const joined = await join(url, name, token.trim());
    room = joined;
    joined.closed.then((closed) => room === joined && showClosed(closed));
  } catch (closed) {
    return showClosed(closed);
  }
  byId("inside").disabled = false;
  show("welcome", room.welcome);
  show("state", `in room ${room.welcome.room} as ${room.welcome.facts.name}`);
});

onSubmit("list", async ({ search }) => {
  show("toolkits", "");
  try {
    for await (const { name, tools, description } of room.toolkits(search)) {
      const line = document.createElement("li");
      line.textContent = `${name}: ${tools.join(", ")}. ${description}`;
      byId("toolkits").append(line);
    }
    show("listed", `${byId("toolkits").childElementCount} toolkits`);
  } catch (error) {
    showError("listed", error);
  }
});

onSubmit("call", async ({ tool, args }) => {
  cancelling = new AbortController();
  show("outcome", "running");
  try {
    const value = await room.call(tool, JSON.parse(args), { signal: cancelling.signal });
    show("outcome", { value });
  } catch (error) {
    showError("outcome", error);
  }
});

byId("cancel").addEventListener("click", () => cancelling?.abort());

function showError(id, { name, code, executed, retryable, message, details }) {
  show(id, { error: code ?? name, executed, retryable, message, details });
}

show("state", "not joined");
