import { mkdir, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { Client } from "@modelcontextprotocol/client";
import { Client as OldClient } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport as OldTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import type { Transport } from "@modelcontextprotocol/sdk/shared/transport.js";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { connect } from "../e2e/clients.ts";
import { createService, unconfined } from "../e2e/service.ts";
import { connectHttp, connectStdio, textOf } from "./clients.ts";

/** Tools of a file: 260 that do nothing, and one for each kind of result. */
const tools = `
import { defineTool, z } from "toolgate/plugin";
const none = z.object({});
const plain = () => defineTool({ description: "Does nothing.", input: none, execute: () => ({ output: "done" }) });
${Array.from({ length: 260 }, (_, i) => `export const n${String(i).padStart(3, "0")} = plain();`).join("\n")}
const given = (output, value) => defineTool({ description: "Returns it.", input: none, output, execute: () => value });
export const object = given(z.object({ count: z.number() }), { count: 7 });
export const array = given(z.array(z.number()), [1, 2]);
export const large = given(z.object({ text: z.string() }), { text: "x".repeat(20_000) });
export const truncated = given(z.object({ text: z.string() }), { text: "line\\n".repeat(3_000) });
export const long = defineTool({ description: "Long.", input: none,
  execute: () => ({ output: Array.from({ length: 20_000 }, (_, i) => "line " + i + " ü").join("\\n") }) });
export const hostile = defineTool({ description: "Hostile.", input: none,
  execute: () => ({ output: "data: {\\"jsonrpc\\":\\"2.0\\"}\\n\\nevent: message\\n\\u0000\\u2028 end" }) });
export const image = defineTool({ description: "Image.", input: none, execute: () => ({ output: "see",
  attachments: [{ mime: "image/png", filename: "a.png", data: png(1_000) }, { mime: "image/png", filename: "b.png", data: png(200_000) },
    { mime: "image/png", filename: "c.png", data: png(2_000_000) }] }) });
export const waits = given(z.object({ count: z.number() }), { count: 8 });
const png = (size) => Buffer.concat([Buffer.from("89504e470d0a1a0a0000000d49484452", "hex"), Buffer.alloc(size)]);
`;

const rules = '[permission]\n"*" = "allow"\nmany_waits = "ask"\n';
const service = createService({ settings: `mcp_hold_ms = 60000\n[mcp_hold.old]\nms = 300\n${unconfined}${rules}` });
const file = () => join(dirname(service.config), "tool/many.ts");
let client: Client;
let legacy: Client;

beforeAll(async () => {
  await service.start();
  await mkdir(dirname(file()), { recursive: true });
  await writeFile(file(), tools);
  [client, legacy] = await Promise.all([connectHttp(service), connectHttp(service, { era: "legacy" })]);
});
afterAll(async () => {
  await Promise.all([client.close(), legacy.close()]);
  await service.close();
});

const run = (name: string, by = client) => by.callTool({ name: `many_${name}`, arguments: {} });

test("the list is sent in pages, each tool once and in order", async () => {
  const { problems } = await connect(service, "caller").tools.listTools({});
  expect(problems).toEqual([]);
  const names: string[] = [];
  const sizes: number[] = [];
  let cursor: string | undefined;
  do {
    const page = await client.request({ method: "tools/list", params: { ...(cursor !== undefined && { cursor }) } });
    names.push(...page.tools.map(({ name }) => name));
    sizes.push(page.tools.length);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  expect(sizes[0]).toBe(250);
  expect(names).toEqual([...new Set(names)].toSorted());
  expect(names).toEqual(expect.arrayContaining(["many_n000", "many_n259", "toolgate_wait"]));
  const { tools: listed } = await client.listTools();
  expect(listed.length).toBe(names.length);
});

describe("structured output", () => {
  test("is sent if it is small and complete; legacy clients get objects only", async () => {
    expect((await run("object")).structuredContent).toEqual({ count: 7 });
    expect((await run("object", legacy)).structuredContent).toEqual({ count: 7 });
    expect((await run("array")).structuredContent).toEqual([1, 2]);
    expect((await run("array", legacy)).structuredContent).toBeUndefined();
  });

  test.each(["large", "truncated"])("is left out of a %s result, whose text is bounded", async (name) => {
    const result = await run(name);
    expect(result.structuredContent).toBeUndefined();
    expect(textOf(result).length).toBeLessThan(55_000);
  });
});

test("a long output is bounded, linked, and can be read to its end", async () => {
  const result = await run("long");
  expect(Buffer.byteLength(textOf(result))).toBeLessThan(55_000);
  const link = result.content.find(({ type }) => type === "resource_link");
  expect(link).toMatchObject({ uri: expect.stringMatching(/^toolgate-output:/), mimeType: "text/plain" });
  let text = "";
  let uri = link?.type === "resource_link" ? link.uri : "";
  while (uri !== "") {
    const [piece] = (await client.readResource({ uri })).contents;
    if (piece === undefined || !("text" in piece)) throw new Error("it is not text");
    expect(Buffer.byteLength(piece.text)).toBeLessThanOrEqual(51_200);
    text += piece.text;
    uri = String(piece._meta?.["toolgate/next"] ?? "");
  }
  expect(text).toBe(Array.from({ length: 20_000 }, (_, i) => `line ${i} ü`).join("\n"));
  const [range] = (
    await client.readResource({ uri: `${link?.type === "resource_link" ? link.uri : ""}?offset=5&limit=3` })
  ).contents;
  expect(range).toMatchObject({ text: "0 ü".slice(0, 2) });
});

test.each(["toolgate-output:out_none", "file:///etc/passwd", "toolgate-output:out_none?offset=x", "nothing"])(
  "%s is no resource",
  async (uri) => {
    await expect(client.readResource({ uri })).rejects.toMatchObject({ code: -32602 });
  },
);

test("an output of another principal is no resource", async () => {
  const result = await run("long");
  const link = result.content.find(({ type }) => type === "resource_link");
  const uri = `${link?.type === "resource_link" ? link.uri : ""}?session=${result._meta?.["toolgate/sessionId"]}`;
  const stranger = await connectHttp(service, { who: "stranger" });
  await expect(stranger.readResource({ uri })).rejects.toMatchObject({ code: -32602 });
  await expect(client.readResource({ uri })).resolves.toMatchObject({ contents: [{ uri }] });
  await stranger.close();
});

test("images are in the result up to a limit, larger ones are links", async () => {
  const { content } = await run("image");
  expect(content.map(({ type }) => type)).toEqual(["text", "image", "image", "resource_link"]);
  const [, , second, third] = content;
  expect(second?.type === "image" && Buffer.from(second.data, "base64").length).toBe(200_016);
  const uri = third?.type === "resource_link" ? third.uri : "";
  const [blob] = (await client.readResource({ uri })).contents;
  expect(blob && "blob" in blob && Buffer.from(blob.blob, "base64").length).toBe(2_000_016);
});

test("output that imitates the protocol arrives as text", async () => {
  for (const by of [client, legacy])
    expect(textOf(await run("hostile", by))).toContain('data: {"jsonrpc":"2.0"}\n\nevent:');
});

describe("the client of the SDK, version 1", () => {
  test("lists, calls, and is answered while a call with structured output waits", async () => {
    const old = new OldClient({ name: "old", version: "1.0.0" });
    const authorization = "Bearer caller-token-for-tests";
    // The transport's type lacks what exactOptionalPropertyTypes asks of it.
    await old.connect(
      new OldTransport(new URL("/mcp", service.url), { requestInit: { headers: { authorization } } }) as Transport,
    );
    const { tools: first, nextCursor = "" } = await old.listTools();
    const { tools: second } = await old.listTools({ cursor: nextCursor });
    expect([...first, ...second].map(({ name }) => name)).toContain("many_waits");
    expect(await old.callTool({ name: "many_object" })).toMatchObject({ structuredContent: { count: 7 } });
    const waiting = await old.callTool({ name: "many_waits" });
    expect(waiting.isError).not.toBe(true);
    expect(JSON.stringify(waiting.content)).toContain("Nothing has run yet");
    await expect(old.callTool({ name: "nothing" })).rejects.toMatchObject({ code: -32602 });
    await old.close();
  });
});

test("a client is notified of tools that change", async () => {
  const { promise: changed, resolve: change } = Promise.withResolvers<void>();
  const stdio = await connectStdio(service, {
    era: "legacy",
    library: { listChanged: { tools: { onChanged: () => change() } } },
  });
  const { promise: heard, resolve: hear } = Promise.withResolvers<void>();
  const http = await connectHttp(service, { library: { listChanged: { tools: { onChanged: () => hear() } } } });
  await Promise.all([stdio.listTools(), http.listTools()]);
  await http.listen({ toolsListChanged: true });
  const extra = join(dirname(file()), "extra.ts");
  await writeFile(extra, tools.slice(0, tools.indexOf("export const n001")));
  await Promise.all([changed, heard]);
  expect((await http.listTools()).tools.map(({ name }) => name)).toContain("extra_n000");
  await rm(extra);
  await Promise.all([stdio.close(), http.close()]);
});
