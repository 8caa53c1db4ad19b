import { once } from "node:events";
import { access, mkdir, mkdtemp, readFile, realpath, rm } from "node:fs/promises";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Client } from "@modelcontextprotocol/client";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "../e2e/clients.ts";
import { createService, type Service, unconfined } from "../e2e/service.ts";
import { askedProgress, connectHttp, connectStdio, eras, textOf } from "./clients.ts";

let service: Service;
let directory: string;
let url: string;

/** A service that has the same address after each start; it is not started yet. */
beforeAll(async () => {
  const probe = createServer().listen(0, "127.0.0.1");
  await once(probe, "listening");
  const { port } = probe.address() as AddressInfo;
  probe.close();
  await once(probe, "close");
  url = `http://127.0.0.1:${port}`;
  directory = await realpath(await mkdtemp(join(tmpdir(), "toolgate-mcp-")));
  await mkdir(join(directory, "packages/a"), { recursive: true });
  const settings = `mcp_hold_ms = 30000\npublic_url = "https://gate.example"\n[mcp_hold.hasty]\nms = 300\n${unconfined}[workspace]\nshop = ${JSON.stringify(directory)}\n`;
  service = createService({ settings, flags: ["--listen", `127.0.0.1:${port}`] });
});
afterAll(async () => {
  await service.close();
  await rm(directory, { recursive: true });
});

describe("toolgate mcp without a service", () => {
  const clients: Client[] = [];
  const changes: Promise<void>[] = [];

  test.each(eras)("answers a %s client that Toolgate is not running", async (era) => {
    const { promise, resolve } = Promise.withResolvers<void>();
    const client = await connectStdio(
      { url },
      { era, library: { listChanged: { tools: { onChanged: () => resolve() } } } },
    );
    clients.push(client);
    changes.push(promise);
    const text = "Toolgate is not running: start it with `npx toolgate serve`";
    await expect(client.listTools()).rejects.toThrow(text);
    await expect(client.callTool({ name: "read", arguments: {} })).rejects.toThrow(text);
    await expect(client.readResource({ uri: "toolgate-output:x" })).rejects.toThrow(text);
  });

  test("serves the same clients once the service is there, and notifies them", async () => {
    await service.start();
    await Promise.all(changes.slice(0, 1));
    for (const client of clients) {
      expect((await client.listTools()).tools.map(({ name }) => name)).toContain("read");
      await client.close();
    }
  });
});

const approver = () => connect(service, "approver").permissions;
const bash = (command: string) => ({ name: "bash", arguments: { command, description: "say" } });

async function requestsFor(command: string) {
  const { permissions } = await approver().listPermissions({});
  return permissions.filter(({ patterns }) => patterns.includes(command));
}

/** Approves all that the call of a command asks, once it does. */
async function approve(command: string): Promise<void> {
  await expect.poll(() => requestsFor(command)).not.toEqual([]);
  const [asking] = await requestsFor(command);
  for (const { id, sessionId, tool } of (await approver().listPermissions({})).permissions)
    if (sessionId === asking?.sessionId && tool?.callId === asking.tool?.callId)
      await approver().respondToPermission({ sessionId, permissionId: id, reply: PermissionReply.ONCE });
}

const exists = (file: string) =>
  access(join(service.workspace, file)).then(
    () => true,
    () => false,
  );

describe("a service that dies while a call waits", () => {
  test("over stdio: the call goes on waiting, and runs once after the approval", async () => {
    const client = await connectStdio(service, { era: "legacy" });
    const { asked, onprogress } = askedProgress();
    const messages: string[] = [];
    const result = client.callTool(bash("echo ran >> survived.txt"), {
      onprogress(progress) {
        messages.push(progress.message ?? "");
        onprogress(progress);
      },
    });
    await asked;
    await service.kill();
    await expect.poll(() => messages.at(-1)).toContain("the connection to Toolgate is lost");
    expect(await exists("survived.txt")).toBe(false);
    await service.start();
    await approve("echo ran >> survived.txt");
    await result;
    expect(await readFile(join(service.workspace, "survived.txt"), "utf8")).toBe("ran\n");
    await client.close();
  });

  test.each(eras)("over HTTP: nothing runs for a %s client, and its request stays open", async (era) => {
    const client = await connectHttp(service, { era });
    const { asked, onprogress } = askedProgress();
    const command = `echo ran >> http-${era}.txt`;
    const result = client.callTool(bash(command), { onprogress });
    // A legacy client waits until its own limit.
    result.catch(() => undefined);
    await asked;
    await service.kill();
    await service.start();
    expect(await requestsFor(command)).toHaveLength(1);
    expect(await exists(`http-${era}.txt`)).toBe(false);
    await client.close();
  });
});

test("a replica that drains answers its held calls before it stops", async () => {
  const client = await connectHttp(service, { era: "modern" });
  const { asked, onprogress } = askedProgress();
  const result = client.callTool(bash("echo drained"), { onprogress });
  await asked;
  const stopped = service.stop();
  expect(textOf(await result)).toContain("toolgate_wait");
  await stopped;
  await service.start();
  expect(await requestsFor("echo drained")).toHaveLength(1);
  const handle = /"call_id":"([^"]+)"/.exec(textOf(await result))?.[1];
  await approve("echo drained");
  const again = await connectHttp(service);
  const ended = await again.callTool({ name: "toolgate_wait", arguments: { call_id: handle } });
  expect(textOf(ended)).toMatch(/^drained/);
  await Promise.all([client.close(), again.close()]);
});

test("the workspace of a stdio client is the root that holds its directory", async () => {
  const client = await connectStdio(service, { cwd: join(directory, "packages/a"), name: "Shop Agent" });
  const result = await client.callTool({ name: "list", arguments: {} });
  const sessionId = String(result._meta?.["toolgate/sessionId"]);
  const { session } = await connect(service, "caller").sessions.getSession({ sessionId });
  expect(session).toMatchObject({
    workspace: "shop",
    requester: { kind: "shop-agent", place: join(directory, "packages/a") },
  });
  await client.close();
});

test("a call that outlives its client is found by toolgate_wait in another session", async () => {
  const client = await connectStdio(service, { name: "hasty" });
  const first = await client.callTool(bash("echo outlived"));
  await client.close();
  await approve("echo outlived");
  const other = await connectStdio(service);
  const handle = /"call_id":"([^"]+)"/.exec(textOf(first))?.[1];
  const ended = await other.callTool({ name: "toolgate_wait", arguments: { call_id: handle } });
  expect(textOf(ended)).toMatch(/^outlived/);
  await other.close();
  const stranger = await connectHttp(service, { who: "stranger", name: "hasty" });
  const refused = await stranger.callTool({ name: "toolgate_wait", arguments: { call_id: handle } });
  expect([refused.isError, textOf(refused)]).toEqual([true, expect.stringContaining("NO_SUCH_SESSION")]);
  await stranger.close();
});

test("a call whose wait met a service that was away is continued by the same call, and runs once", async () => {
  const client = await connectStdio(service, { name: "hasty" });
  const call = bash("echo ran >> once.txt");
  const handle = /"call_id":"([^"]+)"/.exec(textOf(await client.callTool(call)))?.[1];
  await service.kill();
  const waiting = client.callTool({ name: "toolgate_wait", arguments: { call_id: handle } });
  await expect(waiting).rejects.toThrow("Toolgate is not running");
  await service.start();
  await approve("echo ran >> once.txt");
  await expect.poll(() => exists("once.txt")).toBe(true);
  await client.callTool(call);
  expect(await requestsFor("echo ran >> once.txt")).toEqual([]);
  expect(await readFile(join(service.workspace, "once.txt"), "utf8")).toBe("ran\n");
  await client.close();
});

describe("a client that opens links", () => {
  const library = { capabilities: { elicitation: { url: {} } } };
  const ways = [
    ["modern over HTTP", connectHttp, "modern", () => "https://gate.example"],
    ["legacy over stdio", connectStdio, "legacy", () => url],
  ] as const;

  test.each(ways)(
    "%s: gets the link to the request, which has no credential, and its answer decides nothing",
    async (_way, open, era, address) => {
      const client = await open(service, { era, library });
      const { promise: shown, resolve: show } = Promise.withResolvers<{
        message: string;
        url?: string;
        mode?: string;
      }>();
      client.setRequestHandler("elicitation/create", ({ params }) => {
        show(params as { message: string });
        return { action: "accept" };
      });
      const result = client.callTool(bash(`echo linked-${era}`));
      const { message, url: link, mode } = await shown;
      const [request] = await requestsFor(`echo linked-${era}`);
      expect({ message, link, mode }).toEqual({
        message: `Toolgate asks an approver before this runs: bash: echo linked-${era}`,
        link: `${address()}/r/${request?.id}`,
        mode: "url",
      });
      await approve(`echo linked-${era}`);
      expect(textOf(await result)).toMatch(new RegExp(`^linked-${era}`));
      await client.close();
    },
  );

  test.each(ways)(
    "%s: gets the link to a question, and the answers of the person",
    async (_way, open, era, address) => {
      const client = await open(service, { era, library });
      const { promise: shown, resolve: show } = Promise.withResolvers<{ message: string; url?: string }>();
      client.setRequestHandler("elicitation/create", ({ params }) => {
        show(params as { message: string });
        return { action: "accept" };
      });
      expect((await client.listTools()).tools.map(({ name }) => name)).toContain("question");
      const question = `Which, ${era}?`;
      const result = client.callTool({ name: "question", arguments: { question, options: ["this", "that"] } });
      const { message, url: link } = await shown;
      const [request] = await requestsFor(question);
      expect([message, link]).toEqual([
        `Toolgate asks a person to answer: question: ${question}`,
        `${address()}/r/${request?.id}`,
      ]);
      const { id: permissionId = "", sessionId = "" } = request ?? {};
      const answers = [{ values: ["that"] }];
      const { permissions } = connect(service, "approver");
      await permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE, answers });
      expect(textOf(await result)).toContain(`"${question}"="that"`);
      await client.close();
    },
  );

  test("one that does not say so is never asked", async () => {
    const client = await connectHttp(service, {
      name: "hasty",
      library: { capabilities: { elicitation: { form: {} } } },
    });
    client.setRequestHandler("elicitation/create", () => {
      throw new Error("it was asked");
    });
    expect(textOf(await client.callTool(bash("echo unlinked")))).toContain("Nothing has run yet");
    await client.close();
  });
});
