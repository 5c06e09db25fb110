// The client of `@modelcontextprotocol/client`: its argument is the mode of negotiation.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { run } from "./steps.mjs";

const mode = process.argv[2];
const headers = { Authorization: `Bearer ${process.env.MCP_TOKEN}` };
const transport = new StreamableHTTPClientTransport(new URL(process.env.MCP_URL), {
  requestInit: { headers },
});
const names = (tools) => tools.map((tool) => tool.name);
let news = [];
let wake = () => {};
const onChanged = (error, tools) => {
  news.push(names(tools));
  wake();
};
const client = new Client(
  { name: "v2", version: "1.0.0" },
  {
    versionNegotiation: { mode },
    listChanged: { tools: { onChanged } },
    capabilities: { elicitation: { form: {} } },
  },
);
client.setRequestHandler("elicitation/create", () => ({
  action: "accept",
  content: { approve: true },
}));
await client.connect(transport);
const changed = async () => {
  while (news.length === 0) await new Promise((resolve) => (wake = resolve));
  return news.shift();
};
await run({
  list: async () => names((await client.listTools()).tools),
  call: (name, args, options) => client.callTool({ name, arguments: args }, options),
  changed: mode === "legacy" ? undefined : changed,
  asks: mode !== "legacy",
});
await client.close();
