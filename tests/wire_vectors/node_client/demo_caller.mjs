// Makes the calls that it reads: a JSON object per line on stdin, an answer per line on stdout.
// `TOOLBUS_URL=... TOOLBUS_ROOM=... TOOLBUS_TOKEN=... node demo_caller.mjs`, and then for example
//   {"n": 1, "do": "call", "name": "lines.echo", "args": {"value": 7}}
//   {"n": 2, "do": "cancel", "of": 1}

import { createInterface } from "node:readline";
import { File } from "./chunks.mjs";
import { Participant } from "./participant.mjs";

const { TOOLBUS_URL: url, TOOLBUS_ROOM: room, TOOLBUS_TOKEN: token } = process.env;
const say = (what) => console.log(JSON.stringify(what));
const cancelling = new Map();

const DOINGS = {
  async list({ search }) {
    const found = [];
    for await (const toolkit of participant.caller.list(search ? { search } : {})) {
      found.push(toolkit);
    }
    return { toolkits: found };
  },

  async describe({ toolkit }) {
    return participant.caller.describe(toolkit);
  },

  async call({ name, args, input, ...settings }, signal) {
    const told = [];
    const progress = settings.progress ? (value) => told.push(value) : undefined;
    const onHeld = (held) => say({ held: name, ...held });
    const calling = { ...settings, input: input && numbers(input), progress, onHeld, signal };
    const value = await participant.caller.call(name, args, calling);
    return { value: shown(value), told };
  },

  // `take` leaves the stream after this number of values.
  async stream({ name, args, input, take = Infinity, ...settings }, signal) {
    const values = [];
    const calling = { ...settings, input: input && numbers(input), signal };
    try {
      for await (const value of participant.caller.stream(name, args, calling)) {
        values.push(value);
        if (values.length >= take) break;
      }
    } catch (error) {
      throw Object.assign(error, { values });
    }
    return { values };
  },

  async assess({ name, args, ...settings }) {
    return { assessment: await participant.caller.assess(name, args, settings) };
  },

  async holds(options) {
    const holds = [];
    for await (const hold of participant.approver.list(options)) holds.push(shownHold(hold));
    return { holds };
  },

  async approve({ hold, changes = {} }) {
    const read = await participant.approver.read(hold);
    return { read: shownHold(read), ...(await participant.approver.approve(read, changes)) };
  },

  async answer({ hold, value }) {
    const read = await participant.approver.read(hold);
    const { outcome } = await participant.approver.answer(read, value);
    return { outcome, args: read.args ?? null, asked: { ...read.body, arguments: undefined } };
  },

  async deny({ hold, reason }) {
    const read = await participant.approver.read(hold);
    return participant.approver.deny(read, reason);
  },

  async cancel({ of }) {
    cancelling.get(of).abort();
    return {};
  },
};

async function* numbers({ to }) {
  for (let n = 1; n <= to; n++) yield n;
}

function shownHold({ digest, body, ...hold }) {
  return hold;
}

function shown(value) {
  if (value instanceof File) return { file: value.mimeType, size: value.data.length };
  return value === undefined ? null : value;
}

async function answer({ n, do: what, ...rest }) {
  const giveUp = new AbortController();
  cancelling.set(n, giveUp);
  try {
    say({ n, ...(await DOINGS[what](rest, giveUp.signal)) });
  } catch (error) {
    const { code, message, executed, retryable, details, values } = error;
    say({ n, values, error: { code, message, executed, retryable, details } });
  }
}

const participant = await Participant.join({ url, room, token });
participant.onReturn = () => say({ returned: participant.connection.welcome.participant });
say({ joined: participant.connection.welcome.facts.name });
const lines = createInterface({ input: process.stdin });
lines.on("line", (line) => answer(JSON.parse(line)));
lines.on("close", () => participant.leave());
