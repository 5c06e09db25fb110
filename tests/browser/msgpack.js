/**
 * The part of msgpack that `toolbus.v1` uses: JSON values and byte strings (PROTOCOL.md, FRAME-7
 * and BODY-1). No ext types, no times, no NaN; keys of maps are text; 32 levels at most.
 *
 * A whole number that a JavaScript number cannot hold exactly is read as a BigInt. A BigInt is
 * written as a whole number, and so is a number without a fraction.
 */

const MAX_DEPTH = 32;
const SMALLEST = -(2n ** 63n);
const LARGEST = 2n ** 64n - 1n;
const toText = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const toBytes = new TextEncoder();

/**
 * Pack a value. As in JSON, fields of an object that are `undefined` are left out.
 *
 * Throws TypeError or RangeError for a value that is not allowed.
 */
export function pack(value) {
  const writer = new Writer();
  writer.value(value, 1);
  return writer.bytes.slice(0, writer.length);
}

/**
 * Decode one packed value with no bytes after it. Throws Error for invalid bytes.
 *
 * @param bytes A Uint8Array.
 * @param binary Whether byte strings are allowed, as in frames and chunks (BODY-5).
 */
export function unpack(bytes, binary = false) {
  const reader = new Reader(bytes, binary);
  const value = reader.value(1);
  if (reader.at !== bytes.length) throw new RangeError("something comes behind the value");
  return value;
}

class Writer {
  bytes = new Uint8Array(256);
  length = 0;

  value(value, depth) {
    if (value === null) this.number(1, "Uint8", 0xc0);
    else if (typeof value === "boolean") this.number(1, "Uint8", value ? 0xc3 : 0xc2);
    else if (typeof value === "bigint") this.whole(value);
    else if (typeof value === "number") this.anyNumber(value);
    else if (typeof value === "string") this.text(value);
    else if (value instanceof Uint8Array) this.blob(value);
    else if (typeof value === "object") this.nested(value, depth);
    else throw new TypeError(`a ${typeof value} cannot be sent`);
  }

  nested(value, depth) {
    if (depth > MAX_DEPTH) throw new RangeError(`more than ${MAX_DEPTH} levels`);
    if (Array.isArray(value)) {
      this.head(value.length, 0x90, 16, [null, 0xdc, 0xdd]);
      for (const item of value) this.value(item, depth + 1);
      return;
    }
    const entries = Object.entries(value).filter(([, item]) => item !== undefined);
    this.head(entries.length, 0x80, 16, [null, 0xde, 0xdf]);
    for (const [key, item] of entries) {
      this.text(key);
      this.value(item, depth + 1);
    }
  }

  anyNumber(value) {
    if (!Number.isFinite(value)) throw new RangeError(`${value} cannot be sent`);
    if (Number.isSafeInteger(value) && !Object.is(value, -0)) return this.whole(BigInt(value));
    this.number(1, "Uint8", 0xcb);
    this.number(8, "Float64", value);
  }

  whole(value) {
    if (value < SMALLEST || value > LARGEST) throw new RangeError(`${value} is too large`);
    if (value >= -32n && value < 128n) return this.number(1, "Int8", Number(value));
    this.number(1, "Uint8", value < 0n ? 0xd3 : 0xcf);
    this.number(8, value < 0n ? "BigInt64" : "BigUint64", value);
  }

  text(value) {
    const bytes = toBytes.encode(value);
    this.head(bytes.length, 0xa0, 32, [0xd9, 0xda, 0xdb]);
    this.raw(bytes);
  }

  blob(bytes) {
    this.head(bytes.length, 0, 0, [0xc4, 0xc5, 0xc6]);
    this.raw(bytes);
  }

  /** Write the head of `size` items: one byte for few items, else a tag and the size. */
  head(size, few, limit, [tag8, tag16, tag32]) {
    if (size < limit) return this.number(1, "Uint8", few | size);
    const [tag, width] = size < 256 && tag8 ? [tag8, 1] : size < 65536 ? [tag16, 2] : [tag32, 4];
    this.number(1, "Uint8", tag);
    this.number(width, `Uint${8 * width}`, size);
  }

  number(width, type, value) {
    const at = this.room(width);
    new DataView(this.bytes.buffer)[`set${type}`](at, value);
  }

  raw(bytes) {
    const at = this.room(bytes.length); // may replace the buffer
    this.bytes.set(bytes, at);
  }

  room(size) {
    const at = this.length;
    this.length += size;
    if (this.length > this.bytes.length) {
      const larger = new Uint8Array(Math.max(this.length, 2 * this.bytes.length));
      larger.set(this.bytes.subarray(0, at));
      this.bytes = larger;
    }
    return at;
  }
}

class Reader {
  at = 0;

  constructor(bytes, binary) {
    this.bytes = bytes;
    this.binary = binary;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  value(depth) {
    const tag = this.number(1, "Uint8");
    if (tag < 0x80) return tag;
    if (tag < 0x90) return this.map(tag & 0x0f, depth);
    if (tag < 0xa0) return this.array(tag & 0x0f, depth);
    if (tag < 0xc0) return this.text(tag & 0x1f);
    if (tag >= 0xe0) return tag - 256;
    const read = BY_TAG[tag];
    if (!read) throw new TypeError(`a value of the type ${tag} is not allowed`);
    return read(this, depth);
  }

  array(size, depth) {
    this.nested(depth);
    const items = [];
    for (let i = 0; i < size; i++) items.push(this.value(depth + 1));
    return items;
  }

  map(size, depth) {
    this.nested(depth);
    const entries = [];
    for (let i = 0; i < size; i++) {
      const key = this.value(MAX_DEPTH + 1);
      if (typeof key !== "string") throw new TypeError("the key of a map is text");
      entries.push([key, this.value(depth + 1)]);
    }
    return Object.fromEntries(entries);
  }

  nested(depth) {
    if (depth > MAX_DEPTH) throw new RangeError(`more than ${MAX_DEPTH} levels`);
  }

  text(size) {
    return toText.decode(this.raw(size));
  }

  blob(size) {
    if (!this.binary) throw new TypeError("bytes are not allowed here");
    return this.raw(size);
  }

  raw(size) {
    if (size > this.bytes.length - this.at) throw new RangeError("the value is cut off");
    return this.bytes.subarray(this.at, (this.at += size));
  }

  float(width) {
    const value = this.number(width, `Float${8 * width}`);
    if (!Number.isFinite(value)) throw new RangeError(`${value} is not allowed`);
    return value;
  }

  long(type) {
    const value = this.number(8, type);
    const exact = Number(value);
    return Number.isSafeInteger(exact) ? exact : value;
  }

  number(width, type) {
    const value = this.view[`get${type}`](this.at);
    this.at += width;
    return value;
  }
}

const BY_TAG = {
  0xc0: () => null,
  0xc2: () => false,
  0xc3: () => true,
  0xc4: (reader) => reader.blob(reader.number(1, "Uint8")),
  0xc5: (reader) => reader.blob(reader.number(2, "Uint16")),
  0xc6: (reader) => reader.blob(reader.number(4, "Uint32")),
  0xca: (reader) => reader.float(4),
  0xcb: (reader) => reader.float(8),
  0xcc: (reader) => reader.number(1, "Uint8"),
  0xcd: (reader) => reader.number(2, "Uint16"),
  0xce: (reader) => reader.number(4, "Uint32"),
  0xcf: (reader) => reader.long("BigUint64"),
  0xd0: (reader) => reader.number(1, "Int8"),
  0xd1: (reader) => reader.number(2, "Int16"),
  0xd2: (reader) => reader.number(4, "Int32"),
  0xd3: (reader) => reader.long("BigInt64"),
  0xd9: (reader) => reader.text(reader.number(1, "Uint8")),
  0xda: (reader) => reader.text(reader.number(2, "Uint16")),
  0xdb: (reader) => reader.text(reader.number(4, "Uint32")),
  0xdc: (reader, depth) => reader.array(reader.number(2, "Uint16"), depth),
  0xdd: (reader, depth) => reader.array(reader.number(4, "Uint32"), depth),
  0xde: (reader, depth) => reader.map(reader.number(2, "Uint16"), depth),
  0xdf: (reader, depth) => reader.map(reader.number(4, "Uint32"), depth),
};
