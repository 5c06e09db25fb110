// What can go wrong, in the words of section 9 of PROTOCOL.md.

/** A call or request that failed. `executed` tells whether the tool ran: "no", "maybe" or "yes". */
export class RoomError extends Error {
  constructor(code, message, facts = {}) {
    super(message);
    this.name = "RoomError";
    this.code = code;
    const executed = facts.executed ?? "maybe";
    this.executed = ["no", "maybe", "yes"].includes(executed) ? executed : "maybe"; // ERR-3
    this.retryable = facts.retryable ?? false;
    this.details = facts.details ?? {};
    this.retryAfterMs = facts.retryAfterMs ?? null;
  }
}

/** What a tool throws where its words shall travel (ERR-5). */
export class ToolFailed extends Error {
  constructor(words, { retryable = false } = {}) {
    super(words);
    this.name = "ToolFailed";
    this.retryable = retryable;
  }
}

/** A frame or a body that breaks the rules; `closeCode` is what its sender is closed with. */
export class BrokenFrame extends Error {
  constructor(closeCode, why) {
    super(why);
    this.name = "BrokenFrame";
    this.closeCode = closeCode;
  }
}

/** No connection, or not any more. `status` is of HTTP, `closeCode` of the websocket. */
export class Refused extends Error {
  constructor(why, { status = null, closeCode = null } = {}) {
    super(why);
    this.name = "Refused";
    this.status = status;
    this.closeCode = closeCode;
  }
}
