// Uses each export of the package; package.test.ts checks its types and runs it beside an installed package.
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createLogger, loadConfig, readEnvironment, startServer } from "toolgate";
import { connect, findToken, type ToolPart } from "toolgate/client";
import reply from "toolgate/jsonschema/permissionReply.schema.json" with { type: "json" };
import { defineTool, z } from "toolgate/plugin";
import { callTool, openTestWorkspace } from "toolgate/testing";
import { type PermissionReply, permissionReplySchema } from "toolgate/validators";
import { type ServeOptions, serve } from "toolgate/worker";

const count = defineTool({
  name: "count",
  description: "Counts characters.",
  input: z.object({ text: z.string() }),
  plan: () => ({ title: "count", asks: [] }),
  execute: ({ text }) => ({ output: String(text.length) }),
});

await using site = await openTestWorkspace();
const tested = await callTool(site, count, { text: "abc" });

const data = await mkdtemp(join(tmpdir(), "toolgate-consumer-"));
const flags = { workspace: site.directory, data: join(data, "data"), listen: "127.0.0.1:0" };
const config = loadConfig(flags, { ...readEnvironment(), env: {}, home: data });
const server = await startServer(config, createLogger({ level: "error", file: join(data, "log") }), {
  tools: { count },
});
const token = findToken("caller", server.url, { TOOLGATE_DATA: flags.data });
const client = connect({ url: server.url, ...(token !== undefined && { token }) });
const { part } = await client.tools.callTool({ tool: "count", input: { text: "four" }, waitMs: 10_000 });
client.close();
const unknown: ServeOptions = { url: server.url, token: "a-token-without-a-worker", log: () => undefined };
const worker = await serve([count], unknown).then(
  () => "served",
  () => "refused",
);
await server.close();
await rm(data, { recursive: true });

const outputOf = (part: ToolPart | undefined) => (part?.state.case === "completed" ? part.state.value.output : "");
const answer: PermissionReply = permissionReplySchema.parse(reply.enum[0]);
console.log(JSON.stringify({ tested: tested.output, called: outputOf(part), worker, answer }));
