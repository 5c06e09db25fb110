// The hosting side: registers a toolkit, runs its tools, replies.
//
// A tool is `{name, description, input_schema, streaming, check, run}`. `check(args)` returns an
// error as `{path, message}`, or nothing: call a validator for JSON Schema there. `run(args,
// context)` returns a value or, if the tool is `streaming`, an async generator. A person has to
// approve each call of a tool with `approval` before it runs, and answers one of a tool with `external`,
// which has no `run`. `context.ask(question, check)` asks a person in between.

import { ChunkReader, File, packChunk, packPieces } from "./chunks.mjs";
import { RoomError, ToolFailed } from "./errors.mjs";
import { askForAnswer, askPerson } from "./holds.mjs";
import { pack, unpack, unpackJson } from "./packing.mjs";
import { ReceiveWindow, SendWindow } from "./windows.mjs";

const MAX_RUNS = 256;
const OWN_CODES = ["too_large", "invalid_result", "stream_broken"];
const MAX_CHUNK_BYTES = 256 * 1024;
const WINDOW = { chunks: 256, bytes: 2 ** 20 };
const OF_A_PLAIN_CALL = { chunks: 1, bytes: 32 * 1024 }; // STREAM-8

export class Host {
  #connection;
  #toolkits = new Map();
  #digests = new Map();
  #runs = new Map();

  constructor(connection) {
    this.#connection = connection;
    connection.on("dispatch", (frame) => this.#begin(frame));
    connection.on("cancel", ({ id, reason }) => this.#stop(id, reason));
    connection.on("input", (frame) => this.#runs.get(frame.id)?.take(frame));
    connection.on("credit", (frame) => {
      if (!frame.of_input) this.#runs.get(frame.id)?.sending.raise(frame);
    });
    // After the connection has ended no `cancel` arrives.
    connection.closed.then(() => [...this.#runs.keys()].forEach((id) => this.#stop(id, "lost")));
  }

  /**
   * Host a toolkit; returns its `digest`, `generation` and `base`, and whether it is `serving`. Send generation and
   * base after a reconnect.
   */
  async register(toolkit, options = {}) {
    this.#toolkits.set(toolkit.name, toolkit);
    const tools = toolkit.tools.map(({ run, check, ...fields }) => fields);
    const manifest = pack({ ...toolkit, tools });
    const registered = this.#connection.request("register", { manifest, options });
    this.#digests.set(toolkit.name, registered.then(({ digest }) => digest, () => ""));
    return registered;
  }

  /** Accept no more calls; running ones continue. */
  async unregister(name, { isPublic = true } = {}) {
    return this.#connection.request("unregister", { toolkit: name, public: isPublic });
  }

  /** Accept no calls any more, and wait until those that run have ended (LEAVE-5). */
  async drain() {
    await this.#connection.request("drain", { options: {} });
    while (this.#runs.size) {
      await Promise.allSettled([...this.#runs.values()].map(({ ended }) => ended));
    }
  }

  #begin(frame) {
    const run = new Run(this.#connection, frame);
    const refuse = (code, message, details) => run.fail(code, "no", message, { details });
    const tools = this.#toolkits.get(frame.toolkit)?.tools;
    const tool = tools?.find(({ name }) => name === frame.tool);
    if (tool === undefined) return refuse("no_host", "not served here");
    if (this.#runs.size >= MAX_RUNS) return refuse("overloaded", `${MAX_RUNS} calls run here`);
    const isStream = "credit_chunks" in frame.header;
    if (tool.streaming && !isStream) {
      const message = "this tool is called as a stream";
      return refuse("invalid_arguments", message, { path: "", message });
    }
    const { args, wrong } = argumentsOf(tool, frame.arguments);
    if (wrong) return refuse("invalid_arguments", wrong.message, wrong);
    this.#runs.set(frame.id, run);
    const asked = { packed: frame.arguments, definition: this.#digests.get(frame.toolkit) };
    run.ended = run.go(tool, args, asked).finally(() => this.#runs.delete(frame.id));
  }

  #stop(id, reason) {
    this.#runs.get(id)?.stop(reason);
    this.#runs.delete(id);
  }
}

function argumentsOf(tool, body) {
  try {
    const args = unpackJson(body);
    return { args, wrong: tool.check?.(args) };
  } catch (error) {
    return { wrong: { path: "", message: error.message } };
  }
}

/** One dispatch in flight. */
class Run {
  #stopping = new AbortController();

  constructor(connection, { id, header }) {
    Object.assign(this, { connection, id, header });
    const { credit_chunks: chunks, credit_bytes: bytes, whole } = header;
    const plain = whole ? { chunks: 0, bytes: 0 } : OF_A_PLAIN_CALL;
    this.sending = new SendWindow(chunks === undefined ? plain : { chunks, bytes });
    const give = (more, moreBytes) =>
      this.#send("credit", { of_input: true, chunks: more, bytes: moreBytes });
    this.receiving = header.input ? new ReceiveWindow(WINDOW, give) : null;
  }

  async go(tool, args, asked) {
    try {
      if (tool.approval) args = await this.#approved(tool, args, asked);
      if (args === null) return;
      if (tool.external) return await this.#relay(asked);
      const value = tool.run(args, this.#context(asked));
      if (tool.streaming) {
        for await (const each of value) await this.#sendChunks(each);
        this.#send("result", { body: packChunk(undefined) });
      } else {
        await this.#answer(await value);
      }
    } catch (error) {
      if (!this.#stopping.signal.aborted) this.#failWith(error);
    }
  }

  // Return what a person approves: the arguments that came, or changed ones. null: it may not run.
  async #approved(tool, args, asked) {
    const reason = "the tool asks for each call";
    try {
      const definition = await asked.definition;
      const question = { dispatch: this.id, reason, definition, packed: asked.packed };
      const decision = await askPerson(this.connection, question);
      if (decision.outcome !== "approved") {
        this.fail("approval_denied", "no", decision.reason ?? "");
        return null;
      }
      if (!("arguments" in decision)) return args;
      const changed = argumentsOf(tool, decision.arguments);
      if (!changed.wrong) return changed.args;
      this.fail("invalid_arguments", "no", changed.wrong.message, { details: changed.wrong });
    } catch (error) {
      if (!(error instanceof RoomError)) throw error;
      const { code, message, retryable } = error;
      this.fail(code, "no", message, { retryable }); // nothing was entered (HOLD-14)
    }
    return null;
  }

  // Send what a person answers as the result of the call, as it came.
  async #relay({ packed, definition }) {
    const asked = { dispatch: this.id, definition: await definition, arguments: packed };
    try {
      this.#send("result", { body: await askForAnswer(this.connection, asked) });
    } catch (error) {
      if (!(error instanceof RoomError)) throw error;
      const { code, executed, message, retryable } = error;
      this.fail(code, executed, message, { retryable }); // HOLD-17
    }
  }

  async #ask({ definition }, question, check) {
    const asked = { ...question, dispatch: this.id, definition: await definition, entered: true };
    return new ChunkReader().read(await askForAnswer(this.connection, { ...asked, check })).value;
  }

  /** The server reports that the call has ended: no reply is sent (CALL-11). */
  stop(reason) {
    const error = new RoomError("cancelled", `the call has ended: ${reason}`);
    this.#stopping.abort(error);
    this.sending.close(error);
    this.receiving?.end(error, { atOnce: true });
  }

  take({ number, body, last }) {
    try {
      if (body !== null) this.receiving?.push(number, body);
      if (last) this.receiving?.end();
    } catch (error) {
      this.receiving.end(error); // the reader of the input gets the error
    }
  }

  fail(code, executed, message, { details = {}, retryable } = {}) {
    this.#send("failed", {
      code, executed, message, details: pack(details),
      retryable: retryable ?? ["no_host", "overloaded"].includes(code),
    });
  }

  #context(asked) {
    const [id, name, role, issuer, alias] = unpack(this.header.caller);
    return {
      caller: { id, name, role, issuer, alias }, // alias: only beside other issuers (NAME-4)
      id: this.id, // the `parent` of calls within this one (CALL-14)
      signal: this.#stopping.signal,
      input: this.receiving && this.#inputValues(),
      ask: (question, check) => this.#ask(asked, question, check),
      progress: (value) =>
        this.header.progress && this.#send("progress", { body: packChunk(value) }),
    };
  }

  async *#inputValues() {
    const reader = new ChunkReader();
    for await (const body of this.receiving) {
      const read = reader.read(body);
      if (read !== null) yield read.value;
    }
    if (reader.unfinished) throw new RoomError("stream_broken", "a file was left unfinished");
  }

  async #sendChunks(value) {
    for (const body of isFile(value) ? packPieces(value) : [packedResult(value)]) {
      if (body.length > MAX_CHUNK_BYTES) {
        throw new RoomError("too_large", "a chunk of more than 256 KiB", { executed: "yes" });
      }
      this.#send("chunk", { number: await this.sending.turn(body), body });
    }
  }

  // A result that fits is sent as it is; a larger file is sent in pieces if the caller reads them.
  async #answer(value) {
    const most = this.connection.welcome.facts.limits.max_frame_bytes - 32;
    const body = packedResult(value);
    if (body.length <= most) return this.#send("result", { body });
    if (!isFile(value) || this.header.whole) {
      throw new RoomError("too_large", "the result does not fit a frame", { executed: "yes" });
    }
    const pieces = [...packPieces(value)];
    const last = pieces.pop();
    for (const piece of pieces) {
      this.#send("chunk", { number: await this.sending.turn(piece), body: piece });
    }
    this.#send("result", { body: last });
  }

  #failWith(error) {
    if (error instanceof RoomError && OWN_CODES.includes(error.code)) {
      return this.fail(error.code, "yes", error.message);
    }
    const ofTool = error instanceof ToolFailed;
    const words = ofTool ? error.message : "the tool failed"; // ERR-5
    const details = { cause: error?.constructor?.name ?? "unknown" };
    this.fail("tool_failed", "yes", words, { details, retryable: ofTool && error.retryable });
  }

  #send(kind, values) {
    if (this.#stopping.signal.aborted) return;
    try {
      this.connection.send(kind, { id: this.id, ...values });
    } catch {
      this.stop("the connection was lost");
    }
  }
}

function isFile(value) {
  return value instanceof File || value instanceof Uint8Array;
}

function packedResult(value) {
  try {
    return packChunk(value);
  } catch (error) {
    throw new RoomError("invalid_result", error.message, { executed: "yes" });
  }
}
