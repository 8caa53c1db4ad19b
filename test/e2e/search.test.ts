import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connectHttp } from "../mcp/clients.ts";
import { answerJson, searchKey, startProvider } from "../tools/search-provider.ts";
import { connect } from "./clients.ts";
import { read } from "./reading.ts";
import { type Service, startService } from "./service.ts";

const results = answerJson({
  web: { results: [{ url: "https://example.com/", title: "Found", description: "Text" }] },
});

test("search tools appear and go with their provider at SIGHUP, and the key is never shown", async () => {
  const { url, seen } = await startProvider(results);
  const service = await startService({ env: { SEARCH_KEY: searchKey } });
  const agent = connect(service, "caller");
  const sessionId = await agent.newSession();
  expect(await offered(service)).toEqual([]);
  const { part } = await agent.tools.callTool({ sessionId, tool: "websearch", input: { query: "news" } });
  expect(part?.state.case).toBe("error");

  const brave = `[websearch]\nprovider = "brave"\nurl = "${url}"\nkey_env = "SEARCH_KEY"\n`;
  await reload(service, (text) => `${brave}${text}`);
  expect(await offered(service)).toEqual(["websearch"]);
  const { tools } = await agent.tools.listTools({ sessionId });
  const definition = tools.find(({ name }) => name === "websearch");
  expect(definition?.annotations).toMatchObject({ readOnly: true, openWorld: true });

  const reading = read(
    agent.tools.executeTool({ sessionId, callId: "c1", tool: "websearch", input: { query: "news" } }),
  );
  const asked = await reading.until("permissionAsked");
  expect(asked).toMatchObject({ permission: "websearch", patterns: ["news"], preview: { hosts: [new URL(url).host] } });
  expect(asked.offers.map(({ text }) => text)).toContainEqual(expect.stringContaining('everything that fits "*"'));
  expect(seen).toEqual([]);
  await connect(service, "approver").permissions.respondToPermission({
    sessionId,
    permissionId: asked.id,
    reply: PermissionReply.ONCE,
  });
  const ended = await reading.end();
  expect(ended.state.value).toMatchObject({ output: expect.stringContaining("Found 1 by brave") });
  expect(seen[0]?.headers["x-subscription-token"]).toBe(searchKey);

  await reload(service, (text) => text.replace(brave, '[codesearch]\nprovider = "ripgrep"\nroots = ["workspace"]\n'));
  expect(await offered(service)).toEqual(["codesearch"]);
  const log = await readFile(join(service.data, "log", "toolgate.log"), "utf8");
  expect(log).toContain("search providers are in force");
  expect(log).not.toContain("settings changed that need a restart");
  expect(log).not.toContain(searchKey);
});

/** The search tools that ListTools and MCP's tools/list offer; both must agree. */
async function offered(service: Service): Promise<string[]> {
  const searches = (tools: readonly { name: string }[]) =>
    tools.map(({ name }) => name).filter((name) => name === "websearch" || name === "codesearch");
  const { tools } = await connect(service, "caller").tools.listTools({});
  const client = await connectHttp(service);
  const listed = await client.listTools();
  await client.close();
  expect(searches(listed.tools)).toEqual(searches(tools));
  return searches(tools);
}

async function reload(service: Service, change: (text: string) => string): Promise<void> {
  if (service.pid === undefined) throw new Error("the service does not run");
  const log = () => readFile(join(service.data, "log", "toolgate.log"), "utf8");
  const reloads = async () => (await log()).split("configuration reloaded").length;
  const before = await reloads();
  await writeFile(service.config, change(await readFile(service.config, "utf8")));
  process.kill(service.pid, "SIGHUP");
  await vi.waitUntil(async () => (await reloads()) > before, { timeout: 30_000 });
}
