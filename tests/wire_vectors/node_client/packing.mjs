// Values to bytes and back: msgpack, as far as the protocol allows it (FRAME-7, BODY-1).
//
// A number of JavaScript is exact up to 2^53. Integers beyond it are read and written as BigInt,
// all others as plain numbers, however wide they were written.

import { decode, encode } from "@msgpack/msgpack";
import { BrokenFrame, RoomError } from "./errors.mjs";
import { checkShape, MAX_DEPTH } from "./shape.mjs";

const LARGEST = 2 ** 53;

/**
 * Pack one value. 1.0 goes out as the integer 1: JSON does not tell them apart. Throws
 * `invalid_arguments` where it is too deep or holds what is no JSON and no bytes.
 */
export function pack(value) {
  try {
    return encode(widened(value), { useBigInt64: true, maxDepth: MAX_DEPTH });
  } catch (error) {
    throw new RoomError("invalid_arguments", error.message, { executed: "no" });
  }
}

/** Read one whole value, or throw BrokenFrame. */
export function unpack(bytes) {
  checkShape(bytes, { maxItems: Infinity });
  return decoded(bytes);
}

/** Read one whole JSON value, in which no byte string may stand (BODY-5). */
export function unpackJson(bytes) {
  const value = unpack(bytes);
  if (holdsBytes(value)) throw new BrokenFrame(1007, "bytes, which JSON does not have");
  return value;
}

/** Read bytes whose shape was checked. */
export function decoded(bytes) {
  return narrowed(decode(bytes, { useBigInt64: true }));
}

// With BigInt on, this encoder writes plain integers from 2^32 on as floats: they become BigInts.
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
