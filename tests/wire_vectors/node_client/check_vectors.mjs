// Decodes and encodes every golden vector: `node check_vectors.mjs [FOLDER]` exits with 0 if all agree.

import { readdirSync, readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";
import { decodeFrame, encodeFrame } from "./frames.mjs";
import { ChunkReader } from "./chunks.mjs";
import { pack, unpack, unpackJson } from "./packing.mjs";

const folder = process.argv[2] ?? new URL("..", import.meta.url).pathname;

function* vectors(kind) {
  for (const file of readdirSync(`${folder}/${kind}`).sort()) {
    if (!file.endsWith(".json")) continue;
    const path = `${folder}/${kind}/${file.slice(0, -".json".length)}`;
    const told = JSON.parse(exact(readFileSync(`${path}.json`, "utf8")), revive);
    yield { path, told, bytes: Uint8Array.from(readFileSync(`${path}.msgpack`)) };
  }
}

// JSON.parse rounds integers beyond 2^53, so they are replaced before it.
function exact(text) {
  return text.replace(/(?<=[\s[:])(-?\d{16,})(?=[\s,\]}])/g, '{"$int": "$1"}');
}

function revive(key, value) {
  if (typeof value?.$bin === "string") return Uint8Array.from(Buffer.from(value.$bin, "hex"));
  if (typeof value?.$int !== "string") return value;
  const number = BigInt(value.$int);
  return number >= -(2n ** 53n) && number <= 2n ** 53n ? Number(number) : number;
}

function check(holds, path, why) {
  if (!holds) throw new Error(`${path}: ${why}`);
}

function valuesOf(frame) {
  const { kind, ...fields } = frame;
  return Object.values(fields);
}

function same(bytes, value) {
  return isDeepStrictEqual(plain(bytes), plain(value));
}

// A Buffer counts as a Uint8Array.
function plain(value) {
  if (value instanceof Uint8Array) return { $bin: Buffer.from(value).toString("hex") };
  if (Array.isArray(value)) return value.map(plain);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, plain(item)]));
}

const CHECKS = {
  frames({ path, told, bytes }) {
    for (const from of told.from) {
      const frame = decodeFrame(bytes, { from });
      check(frame.kind === told.kind, path, `read as ${frame.kind}`);
      check(same(valuesOf(frame), told.fields), path, "read with other fields");
      const again = unpack(encodeFrame(told.kind, frame));
      check(same(again, unpack(bytes)), path, "written with other fields");
    }
  },
  bodies({ path, told, bytes }) {
    check(same(unpack(bytes), told.value), path, "read as another value");
    check(same(unpack(pack(told.value)), told.value), path, "written as another value");
    if (told.what === "chunk") new ChunkReader().read(bytes);
  },
  broken({ path, told, bytes }) {
    const code = closeCodeOf(() => decodeFrame(bytes, { from: told.from }));
    check(code === told.close_code, path, `${code} instead of ${told.close_code}`);
  },
  broken_bodies({ path, told, bytes }) {
    check(closeCodeOf(() => unpackJson(bytes)) === 1007, path, "was read");
  },
  tolerated({ path, told, bytes }) {
    const frame = decodeFrame(bytes, { from: told.from });
    if ("unknown" in told.reads_as) {
      const { unknown, id } = told.reads_as;
      check(same(frame, { kind: null, number: unknown, id }), path, "is no unknown kind");
    } else {
      check(frame.kind === told.reads_as.kind, path, `read as ${frame.kind}`);
      check(same(valuesOf(frame), told.reads_as.fields), path, "read with other fields");
    }
  },
};

function closeCodeOf(read) {
  try {
    read();
  } catch (error) {
    return error.closeCode ?? String(error);
  }
  return null;
}

const counts = {};
for (const [kind, judge] of Object.entries(CHECKS)) {
  counts[kind] = 0;
  for (const vector of vectors(kind)) {
    judge(vector);
    counts[kind] += 1;
  }
}
console.log(JSON.stringify(counts));
