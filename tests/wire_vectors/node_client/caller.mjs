// The calling side: lists, calls, streams, input and progress.

import { randomBytes } from "node:crypto";
import { BrokenFrame, RoomError } from "./errors.mjs";
import { ChunkReader, packChunk } from "./chunks.mjs";
import { CallClock } from "./holds.mjs";
import { pack } from "./packing.mjs";
import { ReceiveWindow, SendWindow } from "./windows.mjs";

const STREAMS_SINCE = 2; // version (GROW-2)
const ASSESS_SINCE = 5;
const BEHAVIORS = ["allow", "ask", "deny", "pass"];
const WINDOW = { chunks: 256, bytes: 2 ** 20 };
const OF_A_PLAIN_CALL = { chunks: 1, bytes: 32 * 1024 }; // STREAM-8

export class Caller {
  #connection;
  #calls = new Map();

  constructor(connection) {
    this.#connection = connection;
    connection.on("chunk", ({ id, number, body }) => this.#calls.get(id)?.take(number, body));
    connection.on("progress", ({ id, body }) => this.#calls.get(id)?.tell(body));
    connection.on("credit", (frame) => {
      if (frame.of_input) this.#calls.get(frame.id)?.sending.raise(frame);
    });
    connection.on("held", ({ id, data }) => this.#calls.get(id)?.hold(data));
    connection.on("resumed", (frame) => this.#calls.get(frame.id)?.resume(frame));
  }

  /** List all toolkits that this participant may see, page by page. */
  async *list(options = {}) {
    for (let cursor = null; ; ) {
      const page = await this.#connection.request("list", { options: { ...options, cursor } });
      yield* page.toolkits;
      cursor = page.cursor;
      if (cursor === null) return;
    }
  }

  async describe(toolkit, options = {}) {
    return this.#connection.request("describe", { toolkit, options });
  }

  /**
   * Call `toolkit.tool` and return its value.
   *
   * Settings: `timeoutMs`; `signal` cancels (CALL-10); `input`, an iterable of values;
   * `progress`, a function; `onHeld`, a function that is given what a person is asked, and how
   * that ended (HOLD-6); `options`, as in the table of section 5.
   */
  async call(name, args = {}, settings = {}) {
    const call = this.#open(name, args, settings, null);
    let last;
    let count = 0;
    for await (const value of call.values()) {
      count += 1;
      last = value;
      if (count > 1) throw new RoomError("stream_broken", "more than one value");
    }
    return last;
  }

  /** Call as a stream and yield its values as they arrive. Leaving the loop cancels the call. */
  async *stream(name, args = {}, { window = WINDOW, ...settings } = {}) {
    yield* this.#open(name, args, settings, window).values();
  }

  /**
   * Ask what a tool says about these arguments; nothing runs (ASSESS-6).
   *
   * Settings: `patterns`, which of them match; `timeoutMs`; `options`, as of a call.
   */
  async assess(name, args = {}, { patterns = [], timeoutMs = null, options = {} } = {}) {
    if (this.#connection.welcome.version < ASSESS_SINCE) { // ASSESS-7
      throw new RoomError("unavailable", "this server cannot ask tools", { executed: "no" });
    }
    const [toolkit, tool] = name.split(".");
    const said = await this.#connection.request("assess", {
      call_id: randomBytes(16).toString("hex"),
      toolkit, tool, options, patterns, arguments: pack(args), timeout_ms: timeoutMs,
    });
    if (!BEHAVIORS.includes(said?.behavior)) {
      throw new RoomError("invalid_result", "this is no assessment", { executed: "no" });
    }
    return { source: "tool", matches: [], ...said };
  }

  #open(name, args, settings, window) {
    const isMore = window || settings.input || settings.progress;
    if (isMore && this.#connection.welcome.version < STREAMS_SINCE) {
      throw new RoomError("unavailable", "this server knows no streams", { executed: "no" });
    }
    if (this.#connection.isLeaving && !settings.options?.parent) {
      const facts = { executed: "no", retryable: true };
      throw new RoomError("unavailable", "its server is leaving", facts); // LEAVE-9
    }
    const [toolkit, tool] = name.split(".");
    const options = {
      ...settings.options,
      ...(window && { credit_chunks: window.chunks, credit_bytes: window.bytes }),
      ...(settings.input && { input: true }),
      ...(settings.progress && { progress: true }),
    };
    const { id, reply } = this.#connection.open("call", {
      call_id: randomBytes(16).toString("hex"),
      toolkit, tool, options, arguments: pack(args), timeout_ms: settings.timeoutMs ?? null,
    });
    const call = new OpenCall(this.#connection, id, window, settings);
    this.#calls.set(id, call);
    call.run(reply).finally(() => this.#calls.delete(id));
    return call;
  }
}

/** One call in flight. */
class OpenCall {
  constructor(connection, id, window, { input, progress, signal, onHeld, timeoutMs = null }) {
    Object.assign(this, { connection, id, input, progress, signal, onHeld });
    this.sending = new SendWindow();
    const give = (chunks, bytes) =>
      this.#send("credit", { of_input: false, chunks, bytes });
    this.receiving = new ReceiveWindow(window ?? WINDOW, give, window ?? OF_A_PLAIN_CALL);
    this.ended = false;
    this.isGivenUp = false;
    this.clock = new CallClock(timeoutMs, () => {
      this.#fail(new RoomError("deadline_exceeded", "no reply arrived before the deadline"));
    });
  }

  /** Wait for the end of the call; meanwhile send its input and watch its signal. */
  async run(reply) {
    const giveUp = () => this.#giveUp();
    if (this.signal?.aborted) giveUp();
    this.signal?.addEventListener("abort", giveUp);
    if (this.input) this.#sendInput();
    try {
      this.#end(null, await reply);
    } catch (error) {
      this.#end(error);
    } finally {
      this.signal?.removeEventListener("abort", giveUp);
    }
  }

  take(number, body) {
    try {
      this.receiving.push(number, body);
    } catch (error) {
      this.#fail(error);
    }
  }

  /** The call waits for a person: its time stands still until `resume` (HOLD-6). */
  hold(data) {
    this.clock.hold();
    this.onHeld?.(data);
  }

  resume({ waited_ms: waitedMs, data }) {
    this.clock.resume(waitedMs);
    this.onHeld?.(data);
  }

  /** Report progress; an invalid value is dropped, as progress may be lost (PROGRESS-1). */
  tell(body) {
    let read = null;
    try {
      read = new ChunkReader().read(body);
    } catch (error) {
      if (!(error instanceof BrokenFrame)) throw error;
    }
    if (read !== null) this.progress?.(read.value);
  }

  /** Yield its values, files complete. Leaving early cancels the call. */
  async *values() {
    const reader = new ChunkReader();
    try {
      for await (const body of this.receiving) {
        const read = reader.read(body);
        if (read !== null) yield read.value;
      }
      const last = reader.read(this.last) ?? reader.readParts();
      if (last === null) throw new RoomError("stream_broken", "a file was left unfinished");
      if (last.value !== undefined) yield last.value; // [0]: no further value (STREAM-1)
    } catch (error) {
      throw error instanceof BrokenFrame
        ? new RoomError("invalid_result", error.message, { executed: "yes" })
        : error;
    } finally {
      this.#giveUp();
    }
  }

  async #sendInput() {
    try {
      for await (const value of this.input) {
        const body = packChunk(value);
        this.#sendPart(await this.sending.turn(body), body, false);
      }
      this.#sendPart(this.sending.lastNumber, null, true);
    } catch (error) {
      if (!this.ended) this.#fail(error); // the input itself failed (INPUT-3)
    }
  }

  #sendPart(number, body, last) {
    if (!this.ended) this.#send("input", { number, body, last });
  }

  // Cancel the call because of an error on this side.
  #fail(error) {
    this.receiving.end(error);
    this.#giveUp();
  }

  #giveUp() {
    if (this.ended || this.isGivenUp) return;
    this.isGivenUp = true;
    this.#send("cancel", { reason: "cancelled" });
  }

  #end(error, last = null) {
    this.ended = true;
    this.clock.stop();
    this.last = last;
    this.receiving.end(error);
    this.sending.close(error ?? new RoomError("cancelled", "the call has ended"));
  }

  #send(kind, values) {
    try {
      this.connection.send(kind, { id: this.id, ...values });
    } catch (error) {
      if (error.code !== "connection_lost") this.receiving.end(error);
    }
  }
}
