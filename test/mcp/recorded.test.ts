import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync, rmSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { afterEach, expect, onTestFinished, test } from "vitest";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "../e2e/clients.ts";
import { useService } from "../e2e/service.ts";
import { programEntry } from "../main.ts";

/** Sends what the real agents sent in `npm run test:agents`: they asked for one command, and an approver answered later. */
const service = useService({ settings: '[permission.bash]\n"*" = "ask"\n[permission.edit]\n"marker" = "allow"\n' });
afterEach(() => rmSync(join(service.workspace, "marker"), { force: true }));

const recorded = (name: string) =>
  readFileSync(join(import.meta.dirname, "recorded", `${name}.jsonl`), "utf8")
    .trim()
    .split("\n");

/** A JSON-RPC message of the server. */
interface Answer {
  id?: unknown;
  result?: { resultType?: string; requestState?: string; content?: { text?: string }[]; tools?: { name: string }[] };
  error?: object;
}

/** Approves the command when it is asked for. */
async function approve(): Promise<void> {
  const { permissions } = connect(service, "approver");
  const find = async () => (await permissions.listPermissions({})).permissions;
  await expect.poll(async () => (await find()).length).toBe(1);
  const [{ id: permissionId, sessionId } = { id: "", sessionId: "" }] = await find();
  await permissions.respondToPermission({ permissionId, sessionId, reply: PermissionReply.ONCE });
}

/** Checks that the answers contain the list of tools, and that the command ran. */
async function checkAnswers(answers: readonly Answer[]): Promise<void> {
  expect(answers.flatMap(({ error }) => error ?? [])).toEqual([]);
  expect(answers.flatMap(({ result }) => result?.tools?.map(({ name }) => name) ?? [])).toContain("bash");
  expect(answers.at(-1)?.result?.content?.[0]?.text).toBe("made it\n");
  expect(await readFile(join(service.workspace, "marker"), "utf8")).toBe("");
}

/** Sends one recorded request over HTTP. */
async function post(line: string, approval?: Promise<void>): Promise<{ answers: Answer[]; session: string | null }> {
  const { method, headers, body } = JSON.parse(line);
  const left = new AbortController();
  const response = await fetch(new URL("/mcp", service.url), {
    ...{ method, signal: left.signal, headers: { ...headers, authorization: "Bearer caller-token-for-tests" } },
    ...(body !== null && { body: JSON.stringify(body) }),
  });
  const session = response.headers.get("mcp-session-id");
  if (method === "GET") {
    await response.text();
    expect(response.status).toBe(405);
    return { answers: [], session };
  }
  expect(response.ok, `${body.method} got ${response.status}`).toBe(true);
  // A subscription stays open until the client leaves.
  if (body.method === "subscriptions/listen") {
    left.abort();
    return { answers: [], session };
  }
  await approval;
  const data = (await response.text()).matchAll(/^data: (.+)$/gm);
  return {
    answers: [...data].map(([, json = ""]): Answer => JSON.parse(json)).filter(({ id }) => id !== undefined),
    session,
  };
}

test.each(["claude-code-2.1.330", "opencode-1.18.33"])("over HTTP %s is served as it was recorded", async (agent) => {
  const all: Answer[] = [];
  let [session, state] = ["", ""];
  const lines = recorded(`${agent}.http`);
  const lastCall = lines.findLastIndex((line) => line.includes('"method":"tools/call"'));
  for (const [i, line] of lines.entries()) {
    const sent = line.replace("MCP-SESSION", session).replace("REQUEST-STATE", state);
    const { answers, session: given } = await post(sent, i === lastCall ? approve() : undefined);
    session = given ?? session;
    state = answers.find(({ result }) => result?.requestState)?.result?.requestState ?? state;
    all.push(...answers);
  }
  await checkAnswers(all);
});

test.each(["claude-code-2.1.330", "opencode-1.18.33"])("over stdio %s is served as it was recorded", async (agent) => {
  const child = spawn(process.execPath, [programEntry(), "mcp", "--server", service.url], {
    env: { PATH: process.env.PATH, TOOLGATE_TOKEN: "caller-token-for-tests" },
    stdio: ["pipe", "pipe", "inherit"],
  });
  onTestFinished(() => void child.kill("SIGKILL"));
  const all: Answer[] = [];
  const printed = createInterface({ input: child.stdout });
  const answerTo = async (id: unknown) => {
    for (;;) {
      const found = all.find((answer) => answer.id === id);
      if (found !== undefined) return found;
      await once(printed, "line");
    }
  };
  printed.on("line", (line) => {
    const message: Answer = JSON.parse(line);
    if (message.id !== undefined) all.push(message);
  });
  const lines = recorded(`${agent}.stdio`);
  const lastCall = lines.findLastIndex((line) => line.includes('"method":"tools/call"'));
  let state = "";
  for (const [i, line] of lines.entries()) {
    child.stdin.write(`${line.replace("REQUEST-STATE", state)}\n`);
    if (i === lastCall) await approve();
    const { id, method } = JSON.parse(line);
    // A subscription has no answer.
    if (id === undefined || method === "subscriptions/listen") continue;
    state = (await answerTo(id)).result?.requestState ?? state;
  }
  child.stdin.end();
  await once(child, "exit");
  await checkAnswers(all);
});
