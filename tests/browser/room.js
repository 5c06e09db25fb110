/**
 * A participant of a toolbus room in a browser page: joins, lists, calls and cancels over a plain
 * WebSocket. It follows the rules of sdk/toolbus/wire/PROTOCOL.md, which describes the rest of the
 * protocol. It hosts nothing, moves to another server when asked (LEAVE-11), but does not reconnect
 * after a loss, and never retries a call.
 */

import { pack, unpack } from "./msgpack.js";

// Section 5.
const WELCOME = 1;
const RESULT = 2;
const FAILED = 3;
const NOTICE = 5;
const CALL = 16;
const CANCEL = 18;
const LIST = 34;
const DRAIN = 37;

/** Milliseconds past a call's deadline in which the server's error may still arrive (RETRY-6). */
const GRACE_MS = 250;
/** The maximum of a browser's timer; a longer one would fire at once. */
const MAX_TIMER_MS = 2 ** 31 - 1;

/** The meaning of close codes for a page (CONN-6 and the table of close codes). */
const CLOSED = {
  1001: "the server is shutting down: join again in a moment",
  1006: "no connection, or it broke: a page cannot know why; ask `toolbus doctor`",
  1011: "this page was silent for too long, or met a bug of the server's",
  1012: "the server is shutting down: join again in a moment",
  4401: "the token is missing, expired, revoked or not one of this server's",
  4403: "the token is not for this room",
  4404: "there is no such room",
  4409: "a newer connection of this instance is here",
  4429: "too many connections or frames: try again later",
  4430: "this page did not read what the server sent",
  4440: "removed by an administrator, or the token was revoked",
};

/** The server closed the connection, or it could not be opened. `code` is the close code. */
export class RoomClosed extends Error {
  constructor(code) {
    super(CLOSED[code] ?? "the connection was closed");
    this.name = "RoomClosed";
    this.code = code;
  }
}

/**
 * A request failed: `code` of section 8, `executed` ("no", "maybe", "yes": whether the tool ran),
 * `retryable` and `details`.
 */
export class RoomError extends Error {
  constructor({ code, executed, retryable = false, message = "", details = {} }) {
    super(message || code);
    this.name = "RoomError";
    this.code = code;
    // A value of a later release counts as "maybe" (ERR-3).
    this.executed = ["no", "yes"].includes(executed) ? executed : "maybe";
    this.retryable = retryable;
    this.details = details;
  }
}

/**
 * Join a room; resolves after the welcome.
 *
 * @param url The URL of the server, such as "wss://tools.example.org".
 * @param name The name of the room.
 * @param token From your own backend, for the user of this page. It is offered as a subprotocol,
 *   never as a part of the URL, where logs would keep it.
 * Throws RoomClosed if the server refuses the connection.
 */
export async function join(url, name, token) {
  const place = { url, name, token, instance: randomHex() };
  return new Room(place, await open(place));
}

/** Connect; resolves to a Connection after the welcome. */
function open({ url, name, token, instance }, epoch = 1) {
  return new Promise((resolve, reject) => {
    // A browser would quote an invalid subprotocol, and so the token, in its error message.
    if (!/^[\w.-]+$/.test(token)) throw new RoomClosed(4401);
    const query = `instance=${instance}&epoch=${epoch}${epoch > 1 ? "&elsewhere=1" : ""}`;
    const address = `${url}/rooms/${name}?${query}`;
    const socket = new WebSocket(address, ["toolbus.v1", `bearer.${token}`]);
    socket.binaryType = "arraybuffer";
    socket.onclose = ({ code }) => reject(new RoomClosed(code));
    socket.onmessage = ({ data }) => {
      const frame = readFrame(data);
      if (frame?.[0] !== WELCOME) return socket.close();
      resolve(new Connection(socket, frame));
    };
  });
}

class Room {
  /** Resolves to a RoomClosed when the connection has ended. */
  closed;

  #place;
  #connection;
  #epoch = 1;
  #moving = null;
  #isLeft = false;
  #end;

  constructor(place, connection) {
    this.#place = place;
    this.closed = new Promise((resolve) => (this.#end = resolve));
    this.#use(connection);
  }

  /** The content of the welcome: `participant`, `room` and `facts` with name, grants, limits. */
  get welcome() {
    return this.#connection.welcome;
  }

  /** Leave the room. */
  close() {
    this.#isLeft = true;
    this.#connection.close();
  }

  #use(connection) {
    this.#connection = connection;
    connection.onMove = () => (this.#moving ??= this.#move(connection));
    connection.closed.then(async (closed) => {
      await this.#moving;
      if (connection === this.#connection) this.#end(closed);
    });
  }

  /** Try once to connect to another server, and keep the previous connection if that fails. */
  async #move(previous) {
    try {
      const next = await open(this.#place, ++this.#epoch);
      if (this.#isLeft) return next.close();
      this.#use(next);
      previous.finish();
    } catch {
      // A page cannot know why it was refused.
    } finally {
      this.#moving = null;
    }
  }

  /** List the toolkits with a tool that this token may see; `search` filters by text. */
  async *toolkits(search) {
    let cursor;
    do {
      const frame = (id) => [LIST, id, { search, cursor }];
      const page = await this.#connection.request(frame, { read: unpack });
      yield* page.toolkits;
      cursor = page.cursor ?? undefined;
    } while (cursor !== undefined);
  }

  /**
   * Call a tool and return its value.
   *
   * @param tool The tool, written `toolkit.tool`.
   * @param args The arguments, by the tool's input schema.
   * @param settings `timeoutMs`, by default the server's limit; `signal`, an AbortSignal that
   *   cancels; `options` of the protocol, such as `participant` and `pin`.
   * Throws RoomError.
   */
  async call(tool, args = {}, { timeoutMs, signal, options = {} } = {}) {
    const [toolkit, name, ...more] = String(tool).split(".");
    if (!toolkit || !name || more.length) throw new TypeError(`write "toolkit.tool", not ${tool}`);
    const limitMs = Math.ceil(timeoutMs ?? this.welcome.facts.limits.call_timeout_ms);
    const callId = randomHex();
    const packed = pack(args);
    const frame = (id) => [CALL, id, callId, toolkit, name, limitMs, packed, options];
    return await this.#connection.request(frame, { read: readChunk, limitMs, signal });
  }
}

/** One connection after its welcome, and the requests on it. */
class Connection {
  welcome;
  /** Resolves to a RoomClosed when the connection has ended. */
  closed;
  /** Called when the server asks to connect to another server. */
  onMove = () => {};

  #socket;
  #lastId = 0;
  #pending = new Map();
  #isFinishing = false;

  constructor(socket, [, version, participant, room, session, facts]) {
    this.welcome = { version, participant, room, session, facts };
    this.#socket = socket;
    socket.onmessage = ({ data }) => this.#read(data);
    this.closed = new Promise((resolve) => {
      socket.onclose = ({ code }) => {
        this.#loseAll();
        resolve(new RoomClosed(code));
      };
    });
  }

  close() {
    this.#socket.close(1000);
  }

  /** Send `drain`, and close after the last reply (LEAVE-9). */
  async finish() {
    await this.request((id) => [DRAIN, id, {}], { read: unpack }).catch(() => {});
    this.#isFinishing = true;
    if (!this.#pending.size) this.close();
  }

  request(frameOf, { read, limitMs, signal }) {
    const id = ++this.#lastId;
    return new Promise((resolve, reject) => {
      if (signal?.aborted) throw new RoomError({ code: "cancelled", executed: "no" });
      this.#send(frameOf(id));
      const late = { code: "deadline_exceeded", executed: "maybe" };
      const waitMs = Math.min(limitMs + GRACE_MS, MAX_TIMER_MS);
      const timer = limitMs && setTimeout(() => this.#end(id, late), waitMs);
      const cancel = () => this.#cancel(id);
      signal?.addEventListener("abort", cancel);
      const settle = () => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", cancel);
      };
      this.#pending.set(id, { resolve, reject, settle, read });
    });
  }

  #send(fields) {
    const frame = pack(fields);
    if (frame.length > this.welcome.facts.limits.max_frame_bytes) {
      throw new RoomError({ code: "too_large", executed: "no" });
    }
    // A closing socket accepts data and drops it.
    if (this.#socket.readyState !== WebSocket.OPEN) {
      throw new RoomError({ code: "connection_lost", executed: "no", retryable: true });
    }
    this.#socket.send(frame);
  }

  /** The reply to this is the reply to the call: `cancelled`, or a result sent at the same time. */
  #cancel(id) {
    if (this.#socket.readyState === WebSocket.OPEN) this.#send([CANCEL, id, "cancelled"]);
  }

  #read(data) {
    const frame = readFrame(data);
    if (!frame) return this.close();
    const [kind, id, ...rest] = frame;
    if (kind === NOTICE) {
      if (id === "move") this.onMove();
    } else if (kind === RESULT) {
      this.#end(id, null, rest[0]);
    } else if (kind === FAILED) {
      const [code, executed, retryable, message, details] = rest;
      this.#end(id, { code, executed, retryable, message, details: readDetails(details) });
    }
  }

  /** Settle one request; a reply that is late or has an unknown id is dropped (FRAME-12). */
  #end(id, error, body) {
    const request = this.#pending.get(id);
    if (!request) return;
    this.#pending.delete(id);
    request.settle();
    if (this.#isFinishing && !this.#pending.size) this.close();
    if (error) return request.reject(new RoomError(error));
    try {
      request.resolve(request.read(body));
    } catch ({ message }) {
      request.reject(new RoomError({ code: "invalid_result", executed: "yes", message }));
    }
  }

  #loseAll() {
    for (const id of [...this.#pending.keys()]) {
      this.#end(id, { code: "connection_lost", executed: "maybe" });
    }
  }
}

/** Decode a frame; undefined for invalid bytes. */
function readFrame(data) {
  try {
    const frame = unpack(new Uint8Array(data), true);
    return Array.isArray(frame) ? frame : undefined;
  } catch {
    return undefined;
  }
}

/** Read a chunk as its plain value (BODY-4): null, JSON, text, a file, or a link. */
function readChunk(packed) {
  const [kind, ...fields] = unpack(packed, true);
  if (kind === 0) return null;
  if (kind === 1 || kind === 2) return fields[0];
  if (kind === 3) return { name: fields[0], mimeType: fields[1], data: fields[2] };
  if (kind === 4) return { name: fields[0], url: fields[1] };
  throw new TypeError("a chunk of a kind that is not known here");
}

function readDetails(packed) {
  try {
    return packed ? unpack(packed) : {};
  } catch {
    return {}; // BODY-2
  }
}

/** Return 32 random hexadecimal digits. */
function randomHex() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
