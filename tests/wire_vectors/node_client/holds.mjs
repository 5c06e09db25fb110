// Calls that wait for a person (HOLD-1 to HOLD-17): what a host asks, and who decides.

import { createHash } from "node:crypto";
import { packChunk } from "./chunks.mjs";
import { RoomError } from "./errors.mjs";
import { pack, unpack } from "./packing.mjs";

const HOLDS_SINCE = 6; // version (GROW-2)
const MAX_BODY_BYTES = 256 * 1024;
const MAX_ASKED = 3; // HOLD-16
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/**
 * The digest of what is asked about: the definition, and the packed arguments (HOLD-2) or question
 * (HOLD-15).
 */
export function boundDigest(definition, packed) {
  return createHash("sha256").update(definition).update(packed).digest();
}

/** Ask about a dispatch, and wait for what a person decides (HOLD-3). Throws RoomError. */
export async function askPerson(connection, { dispatch, definition, packed, reason }) {
  const body = shownBody(connection, { arguments: packed, reason });
  return connection.request("hold", {
    dispatch, asks: "approve", digest: boundDigest(definition, packed), body, options: {},
  });
}

/**
 * Ask for an answer, and return its packed chunk (HOLD-15): a `question`, or `arguments` of a call
 * whose tool has no code. `check(chunk)` returns what is wrong with an answer. Throws RoomError.
 */
export async function askForAnswer(connection, { dispatch, definition, entered, check, ...asked }) {
  for (let times = 0; times < MAX_ASKED; times++) {
    const body = shownBody(connection, asked);
    const digest = boundDigest(definition, body);
    const options = entered ? { entered } : {};
    const reply = await connection.request("hold", { dispatch, asks: "answer", digest, body, options });
    if (reply.outcome !== "answered") {
      const executed = entered ? "maybe" : "no";
      throw new RoomError("approval_denied", reply.reason ?? "", { executed });
    }
    const wrong = check?.(reply.chunk);
    if (!wrong) return reply.chunk;
    asked.reason = `the answer of ${reply.by.name} does not fit: ${wrong}`;
    entered = true;
  }
  throw new RoomError("invalid_result", asked.reason, { executed: "yes" });
}

function shownBody(connection, asked) {
  checkVersion(connection);
  const body = pack(asked);
  if (body.length > MAX_BODY_BYTES) {
    throw new RoomError("too_large", "more than a person can be shown", { executed: "no" });
  }
  return body;
}

/** Lists, reads and decides what this participant may (HOLD-11). */
export class Approver {
  #connection;

  constructor(connection) {
    this.#connection = connection;
  }

  /** List the open holds, the oldest first, page by page; with `settled` also those that were. */
  async *list(options = {}) {
    checkVersion(this.#connection);
    for (let cursor = null; ; ) {
      const page = await this.#connection.request("holds", { options: { ...options, cursor } });
      yield* page.holds;
      cursor = page.cursor;
      if (cursor === null) return;
    }
  }

  /** Read one; while it is open with `body` and, but for a question, `args`: what would run. */
  async read(id) {
    checkVersion(this.#connection);
    const { hold } = await this.#connection.request("holds", { options: { hold: id } });
    if (hold.outcome !== "open") return hold;
    const body = unpack(hold.body);
    const bound = hold.kind === "answer" ? hold.body : body.arguments;
    if (!boundDigest(hold.definition, bound).equals(hold.digest)) {
      throw new RoomError("invalid_result", "it shows something else than it asks about");
    }
    return { ...hold, body, args: body.arguments && unpack(body.arguments) };
  }

  /** Approve a hold that was read: exactly this, or with other arguments. */
  async approve(hold, { args } = {}) {
    return this.#settle(hold, "approve", args === undefined ? {} : { arguments: pack(args) });
  }

  /** Answer a hold that was read with one value; who answers checks it before (HOLD-16). */
  async answer(hold, value) {
    return this.#settle(hold, "answer", { chunk: packChunk(value) });
  }

  async deny(hold, reason = "") {
    return this.#settle(hold, "deny", { reason });
  }

  async #settle({ id, digest }, decision, options) {
    return this.#connection.request("settle", { hold: id, decision, digest, options });
  }
}

/** The time of a call at its caller; it stands still while the call waits (HOLD-6). */
export class CallClock {
  #endsAt;
  #expire;
  #timer = null;
  #waits = 0;

  constructor(timeoutMs, expire) {
    this.#endsAt = timeoutMs === null ? Infinity : performance.now() + timeoutMs;
    this.#expire = expire;
    if (timeoutMs !== null) this.#start();
  }

  hold() {
    this.#waits += 1;
    this.stop();
  }

  resume(waitedMs) {
    this.#waits -= 1;
    this.#endsAt += waitedMs;
    if (this.#waits === 0 && this.#endsAt !== Infinity) this.#start();
  }

  stop() {
    clearTimeout(this.#timer);
  }

  #start() {
    const leftMs = this.#endsAt - performance.now();
    if (leftMs <= 0) this.#expire();
    else this.#timer = setTimeout(() => this.#start(), Math.min(leftMs, LONGEST_TIMER_MS));
  }
}

function checkVersion({ welcome }) {
  if (welcome.version < HOLDS_SINCE) {
    throw new RoomError("unavailable", "this server knows no approvals", { executed: "no" });
  }
}
