// Frames: arrays that begin with their kind (sections 4 and 5). Encodes and decodes both directions.

import { BrokenFrame } from "./errors.mjs";
import { decoded, pack } from "./packing.mjs";
import { checkShape } from "./shape.mjs";

const MAX_HEADER_BYTES = 64 * 1024;
const CLIENT = "client";
const SERVER = "server";
const BOTH = [CLIENT, SERVER];
const CALL = "id:int call_id:str toolkit:str tool:str";

// number, name, sender, fields; `?` means "or nil".
const TABLE = [
  [1, "welcome", [SERVER], "version:int participant:str room:str session:str facts:map"],
  [2, "result", BOTH, "id:int body:bin"],
  [3, "failed", BOTH,
    "id:int code:str executed:str retryable:bool message:str details:bin? retry_after_ms:int?"],
  [4, "event", [SERVER], "number:int name:str data:map"],
  [5, "notice", [SERVER], "name:str data:map"],
  [16, "call", [CLIENT], `${CALL} timeout_ms:int? arguments:bin options:map? traceparent:str?`],
  [17, "dispatch", [SERVER],
    `${CALL} remaining_ms:int? arguments:bin header:map traceparent:str?`],
  [18, "cancel", BOTH, "id:int reason:str"],
  [19, "chunk", BOTH, "id:int number:int body:bin"],
  [20, "input", BOTH, "id:int number:int body:bin? last:bool"],
  [21, "credit", BOTH, "id:int of_input:bool chunks:int bytes:int"],
  [22, "progress", BOTH, "id:int body:bin"],
  [23, "assess", [CLIENT], `${CALL} timeout_ms:int? arguments:bin options:map? patterns:list`],
  [24, "assess_dispatch", [SERVER],
    `${CALL} remaining_ms:int? arguments:bin header:map patterns:list`],
  // Its `kind` has another name here, where a frame's own is called so.
  [25, "hold", [CLIENT], "id:int dispatch:int? asks:str digest:bin body:bin options:map"],
  [26, "held", [SERVER], "id:int data:map"],
  [27, "resumed", [SERVER], "id:int waited_ms:int data:map"],
  [32, "register", [CLIENT], "id:int manifest:bin options:map"],
  [33, "unregister", [CLIENT], "id:int toolkit:str public:bool"],
  [34, "list", [CLIENT], "id:int options:map"],
  [35, "describe", [CLIENT], "id:int toolkit:str options:map"],
  [36, "subscribe", [CLIENT], "id:int topics:list"],
  [37, "drain", [CLIENT], "id:int options:map"],
  [38, "refresh", [CLIENT], "id:int token:str"],
  [39, "explain", [CLIENT], "id:int toolkit:str tool:str options:map"],
  [40, "holds", [CLIENT], "id:int options:map"],
  [41, "settle", [CLIENT], "id:int hold:str decision:str digest:bin options:map"],
  [48, "attributes", [CLIENT], "id:int attributes:map"],
  [49, "send", [CLIENT], "id:int to:str? name:str body:bin"],
  [50, "participants", [CLIENT], "id:int options:map"],
  [51, "builders", [CLIENT], "id:int options:map"],
  [52, "admin", [CLIENT], "id:int action:str options:map"],
];

const KINDS = TABLE.map(([number, name, senders, fields]) => ({
  number, name, senders,
  fields: fields.split(" ").map((each) => {
    const [field, type] = each.split(":");
    return { field, type: type.replace("?", ""), optional: type.endsWith("?") };
  }),
}));
const BY_NAME = new Map(KINDS.map((kind) => [kind.name, kind]));
const BY_NUMBER = new Map(KINDS.map((kind) => [kind.number, kind]));

const LARGEST = 2 ** 53;
const FITS = {
  int: (value) => Number.isInteger(value) && value >= 0 && value <= LARGEST,
  str: (value) => typeof value === "string",
  bool: (value) => typeof value === "boolean",
  bin: (value) => value instanceof Uint8Array,
  list: (value) => Array.isArray(value),
  map: (value) => isMap(value),
};

/** Encode a frame: `encodeFrame("cancel", {id: 7, reason: "cancelled"})`. */
export function encodeFrame(kind, values) {
  const { number, fields } = BY_NAME.get(kind);
  return pack([number, ...fields.map(({ field }) => values[field] ?? null)]);
}

/**
 * Decode a frame of the other side: `{kind, ...fields}`, or `{kind: null, number, id}` for an
 * unknown kind (FRAME-9). Throws BrokenFrame.
 */
export function decodeFrame(bytes, { from = SERVER, maxBytes = 2 ** 20 } = {}) {
  if (bytes.length > maxBytes) throw new BrokenFrame(1009, "the frame is too large");
  const { opaque, heads } = checkShape(bytes);
  if (bytes.length - opaque > MAX_HEADER_BYTES) throw new BrokenFrame(1009, "too large a header");
  const array = decoded(bytes);
  if (!Array.isArray(array) || !Number.isInteger(array[0]) || isFloat(heads[0])) {
    throw new BrokenFrame(1002, "no array that begins with a kind");
  }
  const kind = BY_NUMBER.get(array[0]);
  if (kind?.senders.includes(from)) return fieldsOf(kind, array.slice(1), heads.slice(1));
  const hasId = FITS.int(array[1]) && !isFloat(heads[1]);
  return { kind: null, number: array[0], id: hasId ? array[1] : null };
}

function fieldsOf(kind, values, heads) {
  const frame = { kind: kind.name };
  kind.fields.forEach(({ field, type, optional }, index) => {
    const leftOut = field === "traceparent" && index >= values.length; // FRAME-3
    const value = leftOut ? null : values[index];
    const fits = FITS[type](value) && !(type === "int" && isFloat(heads[index]));
    if (!fits && !(optional && value === null)) {
      throw new BrokenFrame(1002, `${kind.name}: ${field} is no ${type}`);
    }
    frame[field] = value;
  });
  return frame; // further fields are ignored (FRAME-8)
}

function isFloat(head) {
  return head === 0xca || head === 0xcb;
}

function isMap(value) {
  const isObject = value !== null && typeof value === "object";
  return isObject && !Array.isArray(value) && !(value instanceof Uint8Array);
}
