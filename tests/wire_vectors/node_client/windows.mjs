// Credit windows of a stream, at both ends (STREAM-2 to STREAM-5).

import { RoomError } from "./errors.mjs";

/** What a sender may send: totals that its receiver granted since the call began. */
export class SendWindow {
  #number = 0;
  #bytes = 0;
  #waiting = null;
  #error = null;

  constructor({ chunks = 0, bytes = 0 } = {}) {
    this.given = { chunks, bytes };
  }

  /** Apply a `credit` frame. The greater value of each total counts. */
  raise({ chunks, bytes }) {
    this.given.chunks = Math.max(this.given.chunks, chunks);
    this.given.bytes = Math.max(this.given.bytes, bytes);
    this.#wake();
  }

  /** Reject a waiting sender: the call has ended. */
  close(error) {
    this.#error ??= error;
    this.#wake();
  }

  /** Wait until one more chunk may be sent, whatever its size; count it and return its number. */
  async turn(body) {
    while (this.#error === null && !this.#isOpen) {
      await new Promise((resolve) => (this.#waiting = resolve));
    }
    if (this.#error !== null) throw this.#error;
    this.#bytes += body.length;
    return ++this.#number;
  }

  /** The number of an end, which needs no credit (INPUT-2). */
  get lastNumber() {
    return this.#number + 1;
  }

  get #isOpen() {
    return this.#number < this.given.chunks && this.#bytes < this.given.bytes;
  }

  #wake() {
    this.#waiting?.();
    this.#waiting = null;
  }
}

/**
 * The chunks that a receiver was sent and has not consumed: an async iterable of bodies. It grants
 * more as they are consumed, so that at most `size` is in flight.
 *
 * `give(chunks, bytes)` sends a `credit` frame. `given` is the initial credit of the sender.
 */
export class ReceiveWindow {
  #queue = [];
  #received = 0;
  #used = { chunks: 0, bytes: 0 };
  #given;
  #end = null;
  #waiting = null;

  constructor(size, give, given = { chunks: 0, bytes: 0 }) {
    this.size = size;
    this.give = give;
    this.#given = { ...given };
  }

  /** Store a received chunk. A number that is not the next one breaks the stream. */
  push(number, body) {
    if (this.#end !== null) return;
    if (number !== this.#received + 1) {
      throw new RoomError("stream_broken", `chunk ${number} after ${this.#received}`);
    }
    this.#received = number;
    this.#queue.push(body);
    this.#wake();
  }

  /** End: a reader gets the stored chunks first, then the error; a waiting reader gets it at once. */
  end(error = null, { atOnce = false } = {}) {
    this.#end ??= { error };
    if (atOnce) this.#queue.length = 0;
    this.#wake();
  }

  async *[Symbol.asyncIterator]() {
    if (this.#given.chunks === 0) this.#giveMore(); // input: nothing is sent before it is read
    for (;;) {
      if (this.#queue.length > 0) {
        const body = this.#queue.shift();
        yield body;
        this.#used.chunks += 1;
        this.#used.bytes += body.length;
        if (this.#end === null) this.#giveMore();
      } else if (this.#end !== null) {
        if (this.#end.error) throw this.#end.error;
        return;
      } else {
        await new Promise((resolve) => (this.#waiting = resolve));
      }
    }
  }

  // Half a window at a time, so that not every chunk causes a credit frame.
  #giveMore() {
    const chunks = this.#used.chunks + this.size.chunks;
    const bytes = this.#used.bytes + this.size.bytes;
    const due = (now, before, size) => now - before >= size / 2;
    if (
      due(chunks, this.#given.chunks, this.size.chunks) ||
      due(bytes, this.#given.bytes, this.size.bytes)
    ) {
      this.#given = { chunks, bytes };
      this.give(chunks, bytes);
    }
  }

  #wake() {
    this.#waiting?.();
    this.#waiting = null;
  }
}
