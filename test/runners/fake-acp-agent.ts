import { once } from "node:events";
import { appendFileSync, readFileSync, writeFileSync } from "node:fs";
import { Readable, Writable } from "node:stream";
import { type AgentContext, agent, ndJsonStream, RequestError } from "@agentclientprotocol/sdk";

// An agent over ACP without a model: it does what the prompt says, a list of steps as JSON, then ends its turn. Its answer is the
// list of what the steps brought. Arguments: `no-http`, `protocol-2`, `mute`, `resumes`.

/** One thing that the agent does. */
export type AcpStep =
  | { do: "say"; text: string }
  | { do: "update"; update: Record<string, unknown> }
  /** Asks for permission, and leaves the marker if the option `allow` was selected. */
  | { do: "ask"; params: Record<string, unknown>; marker?: string; result?: Record<string, unknown> }
  /** Asks, and withdraws the request after a while. */
  | { do: "withdraw"; params: Record<string, unknown>; afterMs: number }
  | { do: "request"; method: string; params: Record<string, unknown> }
  | { do: "print"; text: string; width?: number; times: number }
  | { do: "complain"; text: string }
  | { do: "fetch"; path: string; body: unknown }
  | { do: "look"; at: "env" | "cwd" | "token" }
  | { do: "spawn" }
  /** Opens a file of its directory by itself; brings its text or the error's code. */
  | { do: "open"; path: string; append?: string }
  | { do: "hang" | "die" | "exit" }
  | { do: "await cancel"; stop: string }
  | { do: "stop"; reason: string };

const modes = new Set(process.argv.slice(2));
const cancelled = Promise.withResolvers<void>();
let server: { url: string; headers: { name: string; value: string }[] } | undefined;

function openFile({ path, append }: Extract<AcpStep, { do: "open" }>): unknown {
  try {
    if (append !== undefined) appendFileSync(path, append);
    return readFileSync(path, "utf8");
  } catch (error) {
    return error instanceof Error && "code" in error ? error.code : String(error);
  }
}

async function take(step: AcpStep, client: AgentContext, sessionId: string): Promise<unknown> {
  switch (step.do) {
    case "say":
      return void (await say(client, sessionId, step.text));
    case "update":
      return void (await client.notify("session/update", { sessionId, update: step.update }));
    case "ask":
      return await ask(step, client, sessionId);
    case "withdraw": {
      const signal = AbortSignal.timeout(step.afterMs);
      const options = { cancellationSignal: signal };
      return await client
        .request<{ outcome?: { outcome?: string } }>(
          "session/request_permission",
          { sessionId, ...step.params },
          options,
        )
        .then(
          ({ outcome }) => outcome?.outcome,
          () => "withdrawn",
        );
    }
    case "request":
      return await client.request(step.method, { sessionId, ...step.params }).then(
        () => "answered",
        (error: unknown) => (error instanceof RequestError ? error.code : String(error)),
      );
    case "print":
      for (let count = 0; count < step.times; count += 1)
        if (!process.stdout.write(`${step.text.repeat(step.width ?? 1)}\n`)) await once(process.stdout, "drain");
      return undefined;
    case "complain":
      return void process.stderr.write(`${step.text}\n`);
    case "fetch":
      return await post(step.path, step.body);
    case "look":
      if (step.at === "token") return server?.headers[0]?.value;
      return step.at === "cwd" ? process.cwd() : Object.keys(process.env).toSorted();
    case "open":
      return openFile(step);
    case "spawn":
      return (await import("node:child_process")).spawn("sleep", ["0600.25"], { detached: true }).pid;
    case "hang":
      return await new Promise(() => setInterval(() => undefined, 1_000));
    case "die":
      return process.kill(process.pid, "SIGKILL");
    case "exit":
      return process.exit(3);
    default:
      return undefined;
  }
}

async function say(client: AgentContext, sessionId: string, text: string): Promise<void> {
  const update = { sessionUpdate: "agent_message_chunk", content: { type: "text", text } };
  await client.notify("session/update", { sessionId, update });
}

async function ask(
  { params, marker, result }: Extract<AcpStep, { do: "ask" }>,
  client: AgentContext,
  sessionId: string,
): Promise<unknown> {
  const request = { sessionId, ...params };
  const answer = await client.request<{ outcome: { optionId?: string; outcome: string } }>(
    "session/request_permission",
    request,
  );
  const { optionId, outcome } = answer.outcome;
  if (marker !== undefined && optionId === "allow") writeFileSync(marker, "");
  if (result !== undefined) await client.notify("session/update", { sessionId, update: result });
  return optionId ?? outcome;
}

/** Sends JSON to Toolgate, at a path of its MCP server's address; returns the status and the body. */
async function post(path: string, body: unknown): Promise<unknown> {
  if (server === undefined) return "no server";
  const headers = Object.fromEntries(server.headers.map(({ name, value }) => [name, value]));
  const response = await fetch(new URL(path, `${server.url}/`), {
    method: "POST",
    body: JSON.stringify(body),
    headers: { ...headers, "content-type": "application/json", accept: "application/json, text/event-stream" },
  });
  const text = await response.text();
  return [response.status, text.replace(/^.*data: /s, "").trim()];
}

function serve(): void {
  const app = agent({ name: "fake" })
    .onRequest("initialize", async () => {
      if (modes.has("mute")) await new Promise(() => undefined);
      return {
        protocolVersion: modes.has("protocol-2") ? 2 : 1,
        agentCapabilities: {
          mcpCapabilities: { http: !modes.has("no-http") },
          ...(modes.has("resumes") && { sessionCapabilities: { resume: {} } }),
        },
      };
    })
    .onRequest("session/new", ({ params: { mcpServers } }) => {
      server = mcpServers.find((each) => "url" in each) as typeof server;
      return { sessionId: `fake-${process.pid}` };
    })
    .onRequest("session/resume", () => ({}))
    .onNotification("session/cancel", () => cancelled.resolve())
    .onRequest("session/prompt", async ({ params: { prompt, sessionId }, client }) => {
      const [text] = prompt.map((block) => (block.type === "text" ? block.text : ""));
      const results: unknown[] = [];
      for (const step of JSON.parse(text ?? "[]") as AcpStep[]) {
        if (step.do === "stop") return { stopReason: step.reason as "end_turn" };
        if (step.do === "await cancel") {
          await cancelled.promise;
          return { stopReason: step.stop as "cancelled" };
        }
        const result = await take(step, client, sessionId);
        if (result !== undefined) results.push(result);
      }
      if (results.length > 0) await say(client, sessionId, JSON.stringify(results));
      return { stopReason: "end_turn" };
    });
  app.connect(
    ndJsonStream(
      Writable.toWeb(process.stdout) as WritableStream<Uint8Array>,
      Readable.toWeb(process.stdin) as ReadableStream<Uint8Array>,
    ),
  );
}

if (process.argv[1] === import.meta.filename) serve();
