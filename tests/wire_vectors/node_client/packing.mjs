// Values to bytes and back: the part of msgpack that the protocol allows (FRAME-7, BODY-1).
//
// A JavaScript number is exact up to 2^53. Larger integers are decoded and encoded as BigInt, all
// others as plain numbers, whatever their encoded size.

import { decode, encode } from "@msgpack/msgpack";
import { BrokenFrame, RoomError } from "./errors.mjs";
import { checkShape, MAX_DEPTH } from "./shape.mjs";

const LARGEST = 2 ** 53;

/**
 * Pack one value. 1.0 is sent as the integer 1, as JSON does not distinguish them. Throws
 * `invalid_arguments` for a value that is too deep, or neither JSON nor bytes.
 */
export function pack(value) {
  try {
    return encode(widened(value), { useBigInt64: true, maxDepth: MAX_DEPTH });
  } catch (error) {
    throw new RoomError("invalid_arguments", error.message, { executed: "no" });
  }
}

/** Decode one complete value, or throw BrokenFrame. */
export function unpack(bytes) {
  checkShape(bytes, { maxItems: Infinity });
  return decoded(bytes);
}

/** Decode one complete JSON value, without byte strings (BODY-5). */
export function unpackJson(bytes) {
  const value = unpack(bytes);
  if (holdsBytes(value)) throw new BrokenFrame(1007, "bytes, which JSON does not have");
  return value;
}

/** Decode bytes whose shape was checked. */
export function decoded(bytes) {
  return narrowed(decode(bytes, { useBigInt64: true }));
}

// With BigInt on, this encoder writes integers from 2^32 on as floats, so they become BigInts.
function widened(value) {
  if (typeof value !== "number") return mapped(value, widened);
  if (!Number.isFinite(value)) throw new TypeError(`${value} cannot be sent`);
  const wide = Number.isInteger(value) && Math.abs(value) >= 2 ** 31;
  return wide && Math.abs(value) <= LARGEST ? BigInt(value) : value;
}

function narrowed(value) {
  if (typeof value !== "bigint") return mapped(value, narrowed);
  return value >= -LARGEST && value <= LARGEST ? Number(value) : value;
}

function mapped(value, change) {
  if (Array.isArray(value)) return value.map(change);
  if (value === null || typeof value !== "object" || value instanceof Uint8Array) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, change(item)]));
}

function holdsBytes(value) {
  if (value === null || typeof value !== "object") return false;
  return value instanceof Uint8Array || Object.values(value).some(holdsBytes);
}
