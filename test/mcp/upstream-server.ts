/**
 * An MCP server for tests, over stdio. It offers the tools of the JSON file that its first argument names, also after that has
 * changed, and does what the field `does` of a tool says. `behaviour` in the file makes it misbehave from its start.
 */
import { appendFileSync, chmodSync, closeSync, readFileSync, watchFile, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";

const file = process.argv[2] ?? "";
const read = (): { tools: Record<string, unknown>[]; behaviour?: string } => JSON.parse(readFileSync(file, "utf8"));
const send = (message: object) => process.stdout.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);
const text = (value: string) => ({ content: [{ type: "text", text: value }] });
const waiting = new Map<number, (result: unknown) => void>();
let asked = 0;

const { behaviour } = read();
if (behaviour === "exit") {
  console.error("cannot find my settings");
  process.exit(3);
}
if (behaviour === "noise") process.stdout.write("starting up, please wait\n");

/** Called after each change of the file. */
const watchers = new Set<() => void>();
watchFile(file, { interval: 20 }, () => {
  send({ method: "notifications/tools/list_changed" });
  for (const notify of watchers) notify();
});

async function call(name: string, args: Record<string, unknown>, progressToken: unknown): Promise<object> {
  const tool = read().tools.find((each) => each.name === name);
  switch (tool?.does) {
    case "echo":
      return text(JSON.stringify(args));
    case "fail":
      return { ...text("no such issue"), isError: true };
    case "crash":
      return process.exit(7);
    case "close":
      closeSync(1);
      // It runs on, and cannot answer.
      process.stdout.on("error", () => undefined);
      return await new Promise(() => setInterval(() => {}, 1_000));
    case "hang":
      return await new Promise(() => setInterval(() => {}, 1_000));
    case "progress":
      send({ method: "notifications/progress", params: { progressToken, progress: 1, total: 2, message: "half" } });
      return text("done");
    case "reports":
      for (const progress of args.values as number[])
        send({
          method: "notifications/progress",
          params: { progressToken, progress, total: 9, message: `at ${progress}` },
        });
      return text("done");
    case "gated":
      // Each change of the file is progress, until its behaviour is "done".
      return await new Promise((resolve) => {
        const notify = () => {
          if (read().behaviour === "done") resolve(text("done"));
          else send({ method: "notifications/progress", params: { progressToken, progress: 1 } });
        };
        watchers.add(notify);
        appendFileSync(`${file}.entered`, "entered\n");
      });
    case "structured":
      return { ...text("a table"), structuredContent: args.value };
    case "media":
      return {
        content: [
          { type: "image", mimeType: "image/png", data: Buffer.from("picture").toString("base64") },
          { type: "resource", resource: { uri: "note://1", text: "```\nnot the end" } },
          { type: "resource_link", uri: "note://2", name: "second" },
          { type: "audio", mimeType: "audio/wav", data: Buffer.from("sound").toString("base64") },
          {
            type: "resource",
            resource: { uri: "note://3/leaf.bin", mimeType: "a/b", blob: Buffer.from("blob").toString("base64") },
          },
        ],
      };
    case "ask": {
      const id = ++asked;
      const answer = new Promise((resolve) => waiting.set(id, resolve));
      const requestedSchema = tool.form ?? {
        type: "object",
        properties: { name: { type: "string" } },
        required: ["name"],
      };
      send({ id, method: "elicitation/create", params: { message: "Who is it for?", requestedSchema } });
      return text(JSON.stringify(await answer));
    }
    case "open": {
      const id = ++asked;
      const answer = new Promise((resolve) => waiting.set(id, resolve));
      const params = { mode: "url", message: "Sign in", url: "https://sign-in.example/start", elicitationId: "e1" };
      send({ id, method: "elicitation/create", params });
      return text(JSON.stringify(await answer));
    }
    case "read":
      try {
        return text(readFileSync(String(args.text), "utf8"));
      } catch (error) {
        return text(String(error));
      }
    case "setid":
      try {
        writeFileSync("/tmp/program", "");
        chmodSync("/tmp/program", 0o4755);
        return text("set");
      } catch (error) {
        return text(String(error));
      }
    case "environment":
      return text(JSON.stringify(process.env));
    default:
      return { ...text(`unknown tool ${name}`), isError: true };
  }
}

async function answer(method: string, params: Record<string, unknown>): Promise<object | undefined> {
  if (method === "initialize") {
    return {
      protocolVersion: "2025-06-18",
      capabilities: { tools: { listChanged: true }, resources: {} },
      serverInfo: { name: "someone else", version: "1" },
    };
  }
  if (method === "tools/list" && behaviour === "flood") setImmediate(flood);
  if (method === "tools/list") return { tools: read().tools.map(({ does, form, ...tool }) => tool) };
  if (method === "resources/read") return { contents: [{ uri: params.uri, text: `content of ${params.uri}` }] };
  if (method !== "tools/call") return undefined;
  const meta = params._meta as { progressToken?: unknown } | undefined;
  return await call(String(params.name), (params.arguments ?? {}) as Record<string, unknown>, meta?.progressToken);
}

/** Sends pings without end, and reads nothing any more. */
function flood(): void {
  lines.close();
  process.stdin.pause();
  // Fails when the service has ended it.
  process.stdout.on("error", () => process.exit(1));
  const fill = () => {
    while (process.stdout.write(`${JSON.stringify({ jsonrpc: "2.0", id: ++asked, method: "ping" })}\n`));
    process.stdout.once("drain", fill);
  };
  fill();
}

const lines = createInterface({ input: process.stdin });
if (behaviour !== "mute") {
  lines.on("line", async (line) => {
    const { id, method, params = {}, result } = JSON.parse(line);
    if (method === undefined) return waiting.get(id)?.(result);
    if (method === "notifications/cancelled") appendFileSync(`${file}.cancelled`, `${params.reason}\n`);
    if (id === undefined) return;
    const given = await answer(method, params);
    if (given === undefined && behaviour === "old") return;
    send(given ? { id, result: given } : { id, error: { code: -32601, message: `no method ${method}` } });
  });
}
process.stdin.on("end", () => process.exit());
