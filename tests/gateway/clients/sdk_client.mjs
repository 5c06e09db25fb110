// The client of `@modelcontextprotocol/sdk`, for 2025-11-25.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { run } from "./steps.mjs";

const headers = { Authorization: `Bearer ${process.env.MCP_TOKEN}` };
const transport = new StreamableHTTPClientTransport(new URL(process.env.MCP_URL), {
  requestInit: { headers },
});
const client = new Client({ name: "sdk", version: "1.0.0" });
await client.connect(transport);
await run({
  list: async () => (await client.listTools()).tools.map((tool) => tool.name),
  call: (name, args, options) => client.callTool({ name, arguments: args }, undefined, options),
});
await transport.terminateSession();
await client.close();
