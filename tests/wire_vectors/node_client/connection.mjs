// One connection to a room: the handshake, frames in and out, requests and their replies.
// It does not know calls; caller.mjs and host.mjs register the kinds that they read.

import WebSocket from "ws";
import { BrokenFrame, Refused, RoomError } from "./errors.mjs";
import { decodeFrame, encodeFrame } from "./frames.mjs";
import { unpack } from "./packing.mjs";

const SILENT_MS = 15_000;
const PROTOCOL_HEADER = "toolbus-protocol";
// A proxy may send these, and all from 500 on, while its server does not run (CONN-17).
const STATUSES_OF_PROXIES = [408, 414, 429, 431];

export class Connection {
  #socket;
  #readers = new Map();
  #pending = new Map();
  #nextId = 1;
  #maxBytes = 2 ** 20;
  #heard = Date.now();
  #beat = null;
  #noticed = () => {};

  /** The content of the welcome: `participant`, `room`, `facts` and so on. */
  welcome = null;

  /** Resolves to a Refused when the connection has ended; never rejects. */
  closed;

  /** Whether its server leaves: no new call is sent here (LEAVE-9). */
  isLeaving = false;

  /**
   * Join a room. `url` is `ws://HOST:PORT`; `elsewhere` asks for another server than that of an
   * open connection (LEAVE-11). Throws Refused.
   */
  static async join({ url, room, token, instance = "", epoch = 1, elsewhere = false }) {
    const query = new URLSearchParams({
      epoch, chunks: 1, parts: 1, holds: 1,
      ...(instance && { instance }), ...(elsewhere && { elsewhere: 1 }),
    });
    const socket = new WebSocket(`${url}/rooms/${room}?${query}`, ["toolbus.v1"], {
      headers: { Authorization: `Bearer ${token}` },
      perMessageDeflate: false, // CONN-8
    });
    const connection = new Connection(socket);
    await connection.#welcomed();
    return connection;
  }

  constructor(socket) {
    this.#socket = socket;
    this.on("result", (frame) => this.#settle(frame));
    this.on("failed", (frame) => this.#settle(frame));
    this.on("notice", ({ name }) => {
      if (name === "leaving") this.isLeaving = true;
      if (name === "leaving" || name === "move") this.#noticed(name);
    });
    this.closed = new Promise((resolve) => socket.once("close", (code, reason) => {
      clearInterval(this.#beat);
      const why = new Refused(`closed: ${code} ${reason}`, { closeCode: code });
      for (const { reject } of this.#pending.values()) reject(lost("maybe")); // ERR-8
      this.#pending.clear();
      resolve(why);
    }));
    socket.on("message", (data, isBinary) => this.#read(data, isBinary));
    for (const sign of ["ping", "pong"]) socket.on(sign, () => (this.#heard = Date.now()));
  }

  /** Add a reader of the frames of a kind. */
  on(kind, reader) {
    this.#readers.set(kind, [...(this.#readers.get(kind) ?? []), reader]);
  }

  /** Send a frame. Throws `connection_lost`, executed "no", if the connection has ended. */
  send(kind, values) {
    if (this.#socket.readyState !== WebSocket.OPEN) throw lost("no");
    const bytes = encodeFrame(kind, values);
    if (bytes.length > this.#maxBytes) {
      throw new RoomError("too_large", "does not fit a frame", { executed: "no" });
    }
    this.#socket.send(bytes);
  }

  /** Send a request. Its id is free again when `reply`, a promise of the packed body, settles. */
  open(kind, values) {
    const id = this.#nextId++;
    this.send(kind, { id, ...values });
    const request = {};
    request.reply = new Promise((resolve, reject) => Object.assign(request, { resolve, reject }));
    this.#pending.set(id, request);
    return { id, reply: request.reply };
  }

  /** Wait for the next notice that asks for another connection: "leaving" or "move". */
  noticed() {
    return new Promise((resolve) => (this.#noticed = resolve));
  }

  /** Wait until each request has its reply. */
  async settled() {
    while (this.#pending.size) {
      await Promise.allSettled([...this.#pending.values()].map(({ reply }) => reply));
    }
  }

  /** Send a request that is not a call and return the decoded reply. */
  async request(kind, values) {
    return unpack(await this.open(kind, values).reply);
  }

  /** Leave with a close handshake (LEAVE-1). */
  async close() {
    this.#socket.close(1000);
    return this.closed;
  }

  #welcomed() {
    return new Promise((resolve, reject) => {
      this.on("welcome", (frame) => {
        this.welcome = frame;
        this.#maxBytes = frame.facts.limits?.max_frame_bytes ?? this.#maxBytes;
        this.#keepAlive(frame.facts.heartbeat_ms);
        resolve();
      });
      this.#socket.once("unexpected-response", (request, response) => {
        reject(refusal(response));
        request.destroy();
      });
      this.#socket.on("error", (error) => reject(new Refused(String(error))));
      this.closed.then(reject);
    });
  }

  #keepAlive(everyMs) {
    if (!everyMs) return;
    this.#beat = setInterval(() => {
      if (Date.now() - this.#heard > SILENT_MS) this.#socket.terminate(); // CONN-7
      else this.#socket.ping();
    }, everyMs);
  }

  #read(data, isBinary) {
    this.#heard = Date.now();
    try {
      if (!isBinary) throw new BrokenFrame(1003, "a text message");
      const frame = decodeFrame(data, { maxBytes: this.#maxBytes });
      const readers = this.#readers.get(frame.kind) ?? []; // an unknown kind has none (FRAME-9)
      for (const reader of readers) reader(frame);
    } catch (error) {
      if (!(error instanceof BrokenFrame)) throw error;
      this.#socket.close(error.closeCode, error.message);
    }
  }

  #settle(frame) {
    const waiting = this.#pending.get(frame.id);
    if (waiting === undefined) return; // late, or an unknown id (FRAME-12)
    this.#pending.delete(frame.id);
    if (frame.kind === "result") waiting.resolve(frame.body);
    else waiting.reject(errorOf(frame));
  }
}

// Without our header a status says nothing about the token or the room (CONN-17).
function refusal({ statusCode: status, headers }) {
  if (PROTOCOL_HEADER in headers) return new Refused(`refused: HTTP ${status}`, { status });
  const isOfProxy = status >= 500 || STATUSES_OF_PROXIES.includes(status);
  const why = isOfProxy ? "no server answers" : "another service answers there";
  return new Refused(`${why}: HTTP ${status}`);
}

function lost(executed) {
  const facts = { executed, retryable: executed === "no" };
  return new RoomError("connection_lost", "the connection was lost", facts);
}

function errorOf({ code, message, executed, retryable, details, retry_after_ms }) {
  const facts = { executed, retryable, details: detailsOf(details), retryAfterMs: retry_after_ms };
  return new RoomError(code, message, facts);
}

function detailsOf(bytes) {
  try {
    return bytes === null ? {} : unpack(bytes);
  } catch {
    return {}; // invalid details count as none (BODY-2)
  }
}
