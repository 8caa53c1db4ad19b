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
  const { part } = await agent.tools.callTool({ sessionId, tool: "websearch", input: { query: "before" } });
  expect(part?.state.case).toBe("error");

  const brave = `[websearch]\nprovider = "brave"\nurl = "${url}"\nkey_env = "SEARCH_KEY"\n`;
  await reload(service, (text) => `${brave}${text}`);
  expect(await offered(service)).toEqual(["websearch"]);
  const { tools } = await agent.tools.listTools({ sessionId });
  const definition = tools.find(({ name }) => name === "websearch");
  expect(definition?.annotations).toMatchObject({ readOnly: true, openWorld: true });

  const ask = (query: string) =>
    read(agent.tools.executeTool({ sessionId, callId: query, tool: "websearch", input: { query } }));
  const approve = (permissionId: string) =>
    connect(service, "approver").permissions.respondToPermission({
      ...{ sessionId, permissionId, reply: PermissionReply.ONCE },
    });
  const reading = ask("news");
  const asked = await reading.until("permissionAsked");
  expect(asked).toMatchObject({ permission: "websearch", patterns: ["news"], preview: { hosts: [new URL(url).host] } });
  expect(asked.offers.map(({ text }) => text)).toContainEqual(expect.stringContaining('everything that fits "*"'));
  expect(seen).toEqual([]);
  await approve(asked.id);
  const ended = await reading.end();
  expect(ended.state.value).toMatchObject({ output: expect.stringContaining("Found 1 by brave") });
  expect(seen[0]?.headers["x-subscription-token"]).toBe(searchKey);

  // An approval is bound to the provider: another one asks again.
  const other = await startProvider(results);
  const waiting = ask("weather");
  const first = await waiting.until("permissionAsked");
  await reload(service, (text) => text.replace(url, other.url));
  await approve(first.id);
  const second = await waiting.until("permissionAsked");
  expect(second.preview?.hosts).toEqual([new URL(other.url).host]);
  expect([seen.length, other.seen.length]).toEqual([1, 0]);
  await approve(second.id);
  expect((await waiting.end()).state.case).toBe("completed");
  expect([seen.length, other.seen.length]).toEqual([1, 1]);

  const local = '[codesearch]\nprovider = "ripgrep"\nroots = ["workspace"]\n';
  await reload(service, (text) => text.replace(brave.replace(url, other.url), local));
  expect(await offered(service)).toEqual(["codesearch"]);
  const log = await readFile(join(service.data, "log", "toolgate.log"), "utf8");
  expect(log).toContain("search providers and MCP servers are in force");
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
