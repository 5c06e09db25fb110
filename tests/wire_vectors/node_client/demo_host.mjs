// Hosts the toolkit `lines`:
// `TOOLBUS_URL=... TOOLBUS_ROOM=... TOOLBUS_TOKEN=... node demo_host.mjs`.
// Reports on stdout, a JSON object per line: hosted, cancelled calls, and reconnects.

import { once } from "node:events";
import { ToolFailed } from "./errors.mjs";
import { Participant } from "./participant.mjs";

const { TOOLBUS_URL: url, TOOLBUS_ROOM: room, TOOLBUS_TOKEN: token } = process.env;
const say = (what) => console.log(JSON.stringify(what));

const object = (properties) => ({
  type: "object", properties, required: Object.keys(properties), additionalProperties: false,
});
const isNumber = (name) => (args) =>
  Number.isInteger(args[name]) ? null : { path: `/${name}`, message: `${name} is no whole number` };

function saysWhenStopped(name, signal) {
  signal.addEventListener("abort", () => say({ stopped: name, why: signal.reason.message }));
  say({ began: name });
}

const tools = [
  {
    name: "echo", description: "Give back what came.", idempotent: true,
    input_schema: object({ value: {} }),
    run: ({ value }) => value,
  },
  {
    name: "count", description: "Count from 1.", streaming: true,
    input_schema: object({ to: { type: "integer" } }), check: isNumber("to"),
    async *run({ to }) {
      for (let n = 1; n <= to; n++) yield { n };
    },
  },
  {
    name: "total", description: "Add up the numbers of the input.", input_schema: object({}),
    async run(_, { input, progress }) {
      let sum = 0;
      for await (const number of input) progress({ sum: (sum += number) });
      return sum;
    },
  },
  {
    name: "doubled", description: "Double each number of the input.", streaming: true,
    input_schema: object({}),
    async *run(_, { input }) {
      for await (const number of input) yield 2 * number;
    },
  },
  {
    name: "for_ever", description: "Count for ever.", streaming: true, input_schema: object({}),
    async *run(_, { signal }) {
      saysWhenStopped("for_ever", signal);
      for (let n = 1; ; n++) yield n;
    },
  },
  {
    name: "break_off", description: "Count to 3 and fail.", streaming: true,
    input_schema: object({}),
    async *run() {
      yield* [1, 2, 3];
      throw new ToolFailed("no more than three");
    },
  },
  {
    name: "wait", description: "Wait until nobody wants it any more.", input_schema: object({}),
    async run(_, { signal }) {
      saysWhenStopped("wait", signal);
      await once(signal, "abort");
    },
  },
  {
    name: "zeros", description: "A file of so many bytes.",
    input_schema: object({ size: { type: "integer" } }), check: isNumber("size"),
    run: ({ size }) => Buffer.alloc(size),
  },
  {
    name: "refuse", description: "Fail, and say why.", input_schema: object({ words: {} }),
    run({ words }) {
      throw new ToolFailed(words, { retryable: true });
    },
  },
  {
    name: "guarded", description: "Give back what a person approved.", approval: true,
    input_schema: object({ value: { type: "integer" } }), check: isNumber("value"),
    run({ value }) {
      say({ began: "guarded", value });
      return value;
    },
  },
  {
    name: "review", description: "A person gives the result.", external: true,
    input_schema: object({ value: {} }),
  },
  {
    name: "ask", description: "Ask a person which of two.", input_schema: object({}),
    run: (_, { ask }) =>
      ask({ question: "Which?", options: ["red", "blue"] }, (chunk) =>
        chunk.includes("red") || chunk.includes("blue") ? null : "it must be red or blue",
      ),
  },
  {
    name: "crash", description: "Fail by mistake.", input_schema: object({}),
    run() {
      throw new TypeError("words that must not travel");
    },
  },
];

const participant = await Participant.join({ url, room, token });
participant.onReturn = () => say({ returned: participant.connection.welcome.participant });
await participant.offer({ name: "lines", description: "Lines of all kinds", tools });
say({ hosting: "lines" });
process.once("SIGTERM", () => participant.leave());
const why = await participant.gone;
say({ gone: why.message });
