// Chunks: the parts of results, streams and input (BODY-3 to BODY-5, STREAM-9).

import { BrokenFrame, RoomError } from "./errors.mjs";
import { pack, unpack } from "./packing.mjs";

const [EMPTY, JSON_VALUE, TEXT, FILE, LINK] = [0, 1, 2, 3, 4];
const PIECE_BYTES = 64 * 1024;
const END = pack([EMPTY]);

/** Bytes with a name and a type, or the name and address of an external resource. */
export class File {
  constructor(name, mimeType, data) {
    Object.assign(this, { name, mimeType, data });
  }
}

export class Link {
  constructor(name, url) {
    Object.assign(this, { name, url });
  }
}

/** Pack a value as one chunk. undefined is the empty chunk. */
export function packChunk(value) {
  if (value === undefined) return END;
  if (typeof value === "string") return pack([TEXT, value]);
  if (value instanceof File) return pack([FILE, value.name, value.mimeType, value.data]);
  if (value instanceof Uint8Array) return pack([FILE, "", "application/octet-stream", value]);
  if (value instanceof Link) return pack([LINK, value.name, value.url]);
  return pack([JSON_VALUE, value]);
}

/** Pack a file in pieces; in all but the last `more` is true. */
export function* packPieces(file) {
  const { name = "", mimeType = "application/octet-stream" } = file;
  const data = file instanceof File ? file.data : file;
  for (let at = 0; ; at += PIECE_BYTES) {
    const more = at + PIECE_BYTES < data.length;
    const piece = data.subarray(at, at + PIECE_BYTES);
    yield pack(at === 0 ? [FILE, name, mimeType, piece, more] : [FILE, "", "", piece, more]);
    if (!more) return;
  }
}

/** Decodes the chunks of one call in their order and joins the pieces of a file. */
export class ChunkReader {
  #pieces = [];
  #begun = null;

  /** Return `{value}`, or null within a file. Throws `stream_broken` or BrokenFrame. */
  read(body) {
    const [kind, ...fields] = chunkOf(body);
    if (this.#begun === null && kind !== FILE) return { value: plain(kind, fields) };
    if (kind !== FILE) throw new RoomError("stream_broken", "a file was left unfinished");
    const [name, mimeType, data, more = false] = fields;
    this.#begun ??= { name, mimeType };
    this.#pieces.push(data);
    return more ? null : { value: this.#whole() };
  }

  /** Whether a file has begun and not ended. */
  get unfinished() {
    return this.#begun !== null;
  }

  #whole() {
    const { name, mimeType } = this.#begun;
    const data = Buffer.concat(this.#pieces);
    this.#begun = null;
    this.#pieces = [];
    return new File(name, mimeType, data);
  }
}

const FIELDS = {
  [EMPTY]: [], [JSON_VALUE]: [null], [TEXT]: ["string"],
  [FILE]: ["string", "string", "bytes"], [LINK]: ["string", "string"],
};

function chunkOf(body) {
  const chunk = unpack(body);
  const types = Array.isArray(chunk) ? FIELDS[chunk[0]] : undefined;
  const fits = (type, index) => fitsType(type, chunk[index + 1]);
  if (types === undefined || chunk.length <= types.length || !types.every(fits)) {
    throw new BrokenFrame(1007, "no chunk");
  }
  return chunk;
}

function fitsType(type, value) {
  if (type === "bytes") return value instanceof Uint8Array;
  return type === null || typeof value === type;
}

function plain(kind, fields) {
  if (kind === EMPTY) return undefined;
  return kind === LINK ? new Link(...fields) : fields[0];
}
