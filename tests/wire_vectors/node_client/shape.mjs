// The shape of a packed value, checked before it is decoded (FRAME-2, FRAME-5 to FRAME-7).
// A general decoder for msgpack accepts more than the protocol allows: ext types, NaN, keys of any
// type, text that is not UTF-8, any depth. This reads the bytes once and builds nothing.

import { BrokenFrame } from "./errors.mjs";

export const MAX_DEPTH = 32;
const MAX_ITEMS = 4096;
const UTF8 = new TextDecoder("utf-8", { fatal: true });
// By first byte from 0xc0: the type, and the size of its length or of the value itself.
const WIDE = {
  0xc0: ["plain", 0], 0xc2: ["plain", 0], 0xc3: ["plain", 0],
  0xc4: ["bin", 1], 0xc5: ["bin", 2], 0xc6: ["bin", 4],
  0xca: ["float", 4], 0xcb: ["float", 8],
  0xcc: ["plain", 1], 0xcd: ["plain", 2], 0xce: ["plain", 4], 0xcf: ["plain", 8],
  0xd0: ["plain", 1], 0xd1: ["plain", 2], 0xd2: ["plain", 4], 0xd3: ["plain", 8],
  0xd9: ["str", 1], 0xda: ["str", 2], 0xdb: ["str", 4],
  0xdc: ["array", 2], 0xdd: ["array", 4], 0xde: ["map", 2], 0xdf: ["map", 4],
};

const broken = (why) => new BrokenFrame(1007, why);

class Shape {
  constructor(bytes, maxItems) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.maxItems = maxItems;
    this.at = 0;
    this.opaque = 0;
    this.heads = [];
  }

  /** Skip one value. `direct`: it is in the frame's array, or in a map of it. */
  value(depth, direct) {
    if (depth === 1) this.heads.push(this.bytes[this.at]);
    const [what, size] = this.head();
    if (what === "array" || what === "map") this.items(what, size, depth + 1, direct);
    else if (what === "str") this.text(size);
    else if (what === "bin") this.bin(size, direct);
    else if (what === "float") this.float(size);
    else this.skip(size);
  }

  head() {
    const first = this.bytes[this.skip(1)];
    if (first < 0x80 || first >= 0xe0) return ["plain", 0];
    if (first < 0x90) return ["map", first & 0x0f];
    if (first < 0xa0) return ["array", first & 0x0f];
    if (first < 0xc0) return ["str", first & 0x1f];
    if (!(first in WIDE)) throw broken(`0x${first.toString(16)}: an ext type, or none at all`);
    const [what, width] = WIDE[first];
    return [what, what === "plain" || what === "float" ? width : this.number(width)];
  }

  items(what, count, depth, direct) {
    if (depth > MAX_DEPTH) throw broken("too deep");
    if (count > this.maxItems || count > this.bytes.length) throw broken("too many items");
    for (let left = count; left > 0; left--) {
      if (what === "map") this.key();
      this.value(depth, depth === 1 || (depth === 2 && direct && what === "map"));
    }
  }

  key() {
    const [what, size] = this.head();
    if (what !== "str") throw broken("a key that is no text");
    this.text(size);
  }

  text(size) {
    const start = this.skip(size);
    try {
      UTF8.decode(this.bytes.subarray(start, this.at));
    } catch {
      throw broken("text that is not UTF-8");
    }
  }

  bin(size, direct) {
    this.skip(size);
    if (direct) this.opaque += size;
  }

  float(size) {
    const start = this.skip(size);
    const value = size === 4 ? this.view.getFloat32(start) : this.view.getFloat64(start);
    if (!Number.isFinite(value)) throw broken("a number that is not finite");
  }

  number(width) {
    const start = this.skip(width);
    if (width === 1) return this.view.getUint8(start);
    return width === 2 ? this.view.getUint16(start) : this.view.getUint32(start);
  }

  skip(size) {
    const start = this.at;
    this.at += size;
    if (this.at > this.bytes.length) throw broken("ends too early");
    return start;
  }
}

/**
 * Check one complete value. Return how many of its bytes are opaque parts of a frame, and the first
 * byte of each item of its outer array, which distinguishes 7.0 from 7.
 */
export function checkShape(bytes, { maxItems = MAX_ITEMS } = {}) {
  const shape = new Shape(bytes, maxItems);
  shape.value(0, false);
  if (shape.at !== bytes.length) throw broken("bytes behind the value");
  return shape;
}
