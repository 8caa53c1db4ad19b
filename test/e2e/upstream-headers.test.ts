import { once } from "node:events";
import { rm } from "node:fs/promises";
import { createServer, type IncomingHttpHeaders } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, expect, onTestFinished, test, vi } from "vitest";
import { SourceService } from "../../gen/opencode/tool/v1/source_service_pb.ts";
import { clientOf } from "./clients.ts";
import { createService, type Service, startService } from "./service.ts";

const received: IncomingHttpHeaders[] = [];
const server = createServer((request, response) => {
  received.push(request.headers);
  response.writeHead(401).end();
});
let service: Service;

beforeAll(async () => {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  service = createService({
    settings: `[mcp.remote]\nurl = "http://127.0.0.1:${port}/mcp?key=in-the-query"\nheaders = { "X-Team" = "blue" }\nheader_env = { Authorization = "REMOTE_KEY" }\n`,
    env: { REMOTE_KEY: "Bearer the-remote-key" },
  });
  await service.start();
});
afterAll(async () => {
  await service.close();
  server.close();
});

test("a server at an address gets the configured headers and those from the environment, and nobody sees these", async () => {
  await vi.waitUntil(() => received.length > 0);
  expect(received[0]).toMatchObject({ "x-team": "blue", authorization: "Bearer the-remote-key" });
  const { sources } = await clientOf(SourceService, service.url, "approver-token-for-tests").listSources({});
  const shown = JSON.stringify(sources, (_, value) => (typeof value === "bigint" ? Number(value) : value));
  expect(shown).toContain('"name":"remote"');
  for (const secret of ["the-remote-key", "in-the-query"]) expect(shown).not.toContain(secret);
});

test("a program that leaves a directory which the service cannot remove does not end the service", async () => {
  const left = "mkdir kept; touch kept/file; chmod 0 kept; pwd >&2";
  const settings = `[mcp.leaves]\ncommand = "/bin/sh"\nargs = ["-c", "${left}"]\n`;
  const isRoot = process.getuid?.() === 0;
  const other = await startService({ settings, ...(isRoot && { uid: 65_534 }) });
  const { listSources } = clientOf(SourceService, other.url, "approver-token-for-tests");
  const source = async () => (await listSources({})).sources[0];
  await vi.waitUntil(async () => ((await source())?.restarts ?? 0) > 0, { timeout: 60_000 });
  const [directory = ""] = /\S*toolgate-mcp-\S+/.exec((await source())?.problem ?? "") ?? [];
  onTestFinished(() => rm(directory, { recursive: true, force: true }));
  expect(directory).toMatch(/toolgate-mcp-/);
  expect(other.pid).toBeGreaterThan(0);
});
