// The errors of section 9 of PROTOCOL.md.

/** A call or request that failed. `executed`: whether the tool ran: "no", "maybe" or "yes". */
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

/** Thrown by a tool whose message is to be sent to the caller (ERR-5). */
export class ToolFailed extends Error {
  constructor(words, { retryable = false } = {}) {
    super(words);
    this.name = "ToolFailed";
    this.retryable = retryable;
  }
}

/** A frame or a body that breaks the rules; `closeCode` is the code with which its sender is closed. */
export class BrokenFrame extends Error {
  constructor(closeCode, why) {
    super(why);
    this.name = "BrokenFrame";
    this.closeCode = closeCode;
  }
}

/**
 * The connection was refused or has ended. `status` is that of a toolbus server's HTTP response,
 * `closeCode` of the websocket.
 */
export class Refused extends Error {
  constructor(why, { status = null, closeCode = null } = {}) {
    super(why);
    this.name = "Refused";
    this.status = status;
    this.closeCode = closeCode;
  }
}
