import { spawn } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { connect } from "../e2e/clients.ts";
import { createService } from "../e2e/service.ts";
import { freePorts } from "../store/redis-server.ts";
import { compileRecorded, createSdkClient, installSdk, type RecordedValue, sdkFolder } from "./opencode-sdk.ts";

/** The service has the same address after a restart. */
const [port = 0] = await freePorts(1);
const service = createService({
  settings: "drain_ms = 500\n",
  flags: ["--opencode", "--listen", `127.0.0.1:${port}`],
});
beforeAll(async () => {
  await Promise.all([installSdk(), service.start()]);
});
afterAll(service.close);

const recorded: RecordedValue[] = [];
const fits = (type: string, value: unknown, exact = true) => recorded.push({ type, value, exact });

/** Types of the answers, by the shape of their path. */
const answers: readonly (readonly [path: RegExp, type: string])[] = [
  [/^\/session$/, "v2.Session | v2.Session[]"],
  [/^\/session\/status$/, "v2.SessionStatusResponses[200]"],
  [/^\/session\/[^/]+$/, "v2.Session | boolean"],
  [/\/children$/, "v2.Session[]"],
  [/\/message$/, "v2.SessionMessagesResponses[200]"],
  [/\/message\/[^/]+$/, "v2.SessionMessagesResponses[200][0]"],
  [/\/shell$/, "v2.SessionShellResponses[200]"],
  [/^\/permission$/, "v2.PermissionRequest[]"],
  [/^\/question$/, "v2.QuestionRequest[]"],
  [/^\/(permission|question)\/|\/permissions\/|\/abort$/, "boolean"],
  [/^\/experimental\/tool\/ids$/, "v2.ToolIds"],
  [/^\/experimental\/tool$/, "v2.ToolList"],
  [/^\/agent$/, "v2.Agent[]"],
  [/^\/path$/, "v2.Path"],
  [/^\/config$/, "v2.Config"],
  [/^\/config\/providers$/, "v2.ConfigProvidersResponses[200]"],
  [/^\/provider$/, "v2.ProviderListResponses[200]"],
  [/^\/project\/current$/, "v2.Project"],
  [/^\/global\/health$/, "v2.GlobalHealthResponses[200]"],
];

function recordAnswer(path: string, value: unknown): void {
  const type = answers.find(([pattern]) => pattern.test(path))?.[1];
  if (type === undefined) throw new Error(`the test does not know the type of ${path}`);
  fits(type, value);
  if (/^v2\.(Session[ []|SessionMessagesResponses|SessionStatusResponses|Tool|Path|Project)/.test(type))
    fits(type.replaceAll("v2.", "v1."), value, false);
}

const sdk = (version: "root" | "v2", who: "caller" | "approver", record = recordAnswer) =>
  createSdkClient(
    version,
    { url: `http://127.0.0.1:${port}`, token: `${who}-token-for-tests`, directory: service.workspace },
    record,
  );

interface SentEvent {
  id: string;
  type: string;
  properties: Record<string, unknown>;
}

/** Follows the events with a client of the package, until the test ends; returns the list that grows. */
async function follow(version: "root" | "v2", who: "caller" | "approver") {
  const events: SentEvent[] = [];
  const errors: unknown[] = [];
  const left = new AbortController();
  let away = Promise.withResolvers<void>();
  away.resolve();
  const client = await sdk(version, who);
  const options = {
    signal: left.signal,
    onSseError: (error: unknown) => errors.push(error),
    // The client's own pause would be 250 ms and more.
    sseSleepFn: () => away.promise,
  };
  const { stream } = await (version === "root" ? client.event.subscribe(options) : client.event.subscribe({}, options));
  const reading = (async () => {
    for await (const event of stream) events.push(event);
  })();
  await vi.waitFor(() => expect(events[0]?.type).toBe("server.connected"), 30_000);
  return {
    events,
    errors,
    /** Keeps the client away after it has lost its connection, until the returned function is called. */
    leave() {
      away = Promise.withResolvers();
      return away.resolve;
    },
    has: (type: string, about: object) =>
      vi.waitFor(() => {
        const found = events.findLast((event) => event.type === type && matches(event.properties, about));
        if (found === undefined) throw new Error(`no ${type} in ${events.map((event) => event.type).join(", ")}`);
        return found;
      }, 30_000),
    async end() {
      left.abort();
      await reading;
      for (const event of events) recordEvent(event);
    },
  };
}

const matches = (properties: object, about: object) => {
  try {
    expect(properties).toMatchObject(about);
    return true;
  } catch {
    return false;
  }
};

/** Events of both generations: the clients of the root know `permission.updated`, those of `/v2` what the real server sends. */
function recordEvent(event: SentEvent): void {
  const { type } = event;
  // The real server sends it too, and neither type has it.
  if (type === "server.heartbeat") return;
  if (type === "permission.updated") fits("v1.EventPermissionUpdated & { id: string }", event);
  else if (type === "permission.replied") fits("v2.EventPermissionReplied & v1.EventPermissionReplied", event);
  else fits("v2.Event", event);
  const known = /^(session\.(created|updated|deleted|status|idle)|message\.(part\.)?updated|server\.connected)$/;
  if (known.test(type)) fits("v1.Event", event, false);
}

describe.each(["root", "v2"] as const)("the client of the package's %s", (version) => {
  const isRoot = version === "root";

  test("creates, reads and lists sessions and tools", async () => {
    const client = await sdk(version, "caller");
    const title = `of ${version}`;
    const { data: session } = await client.session.create(isRoot ? { body: { title } } : { title, metadata: { a: 1 } });
    expect(session).toMatchObject({ title, projectID: "default", directory: service.workspace });
    const named = isRoot ? { path: { id: session.id } } : { sessionID: session.id };
    expect((await client.session.get(named)).data).toEqual(session);
    const child = { parentID: session.id, title: "child" };
    const { data: created } = await client.session.create(isRoot ? { body: child } : child);
    expect((await client.session.children(named)).data).toEqual([created]);
    const { data: sessions } = await client.session.list();
    expect(sessions.slice(0, 2).map(({ id }: { id: string }) => id)).toEqual([created.id, session.id]);
    const wanted = { provider: "anthropic", model: "claude" };
    const { data: tools } = await client.tool.list(isRoot ? { query: wanted } : wanted);
    const { data: ids } = await client.tool.ids();
    expect(tools.map(({ id }: { id: string }) => id)).toContain("bash");
    expect(ids).toContain("edit");
    for (const describe of [
      client.path.get,
      client.config.get,
      client.config.providers,
      client.app.agents,
      client.project.current,
    ])
      expect((await describe.call(client.path)).error).toBeUndefined();
    expect((await client.session.delete(named)).data).toBe(true);
    expect((await client.session.list()).data.map(({ id }: { id: string }) => id)).not.toContain(session.id);
  });

  test("answers with once, always and reject, and runs a command without a model", async () => {
    const agent = await sdk(version, "caller");
    const person = await sdk(version, "approver");
    const seen = await follow(version, "approver");
    const { data: session } = await agent.session.create();
    const named = isRoot ? { path: { id: session.id } } : { sessionID: session.id };
    const run = (command: string) => {
      const body = { agent: "build", command };
      return agent.session.shell(isRoot ? { ...named, body } : { ...named, ...body });
    };
    for (const [response, status] of [
      ["once", "completed"],
      ["always", "completed"],
      ["reject", "error"],
    ] as const) {
      const running = run(`touch ${version}-${response}`);
      const asked = await seen.has("permission.asked", {
        sessionID: session.id,
        metadata: { command: `touch ${version}-${response}` },
      });
      const permissionID = String(asked.properties.id);
      const listed = await (await sdk("v2", "approver")).permission.list();
      expect(listed.data).toEqual([asked.properties]);
      const { data, error } = isRoot
        ? await person.postSessionIdPermissionsPermissionId({
            path: { id: session.id, permissionID },
            body: { response },
          })
        : await person.permission.reply({ requestID: permissionID, reply: response });
      expect({ data, error }).toEqual({ data: true, error: undefined });
      await seen.has("permission.replied", { requestID: permissionID, permissionID, reply: response, response });
      expect((await running).data.parts).toMatchObject([{ tool: "bash", state: { status } }]);
    }
    const { data: messages } = await agent.session.messages(named);
    expect(messages.map(({ parts }: { parts: { state: { status: string } }[] }) => parts[0]?.state.status)).toEqual([
      "completed",
      "completed",
      "error",
    ]);
    await seen.has("session.idle", { sessionID: session.id });
    await seen.end();
  });

  test("follows events through a kill and a drain of the service without a gap", async () => {
    const seen = await follow(version, "approver");
    const { tools, newSession } = connect({ url: `http://127.0.0.1:${port}` }, "caller");
    const sessions = [await newSession(), await newSession()];
    const say = async (text: string) => {
      for (const sessionId of sessions)
        await tools.callTool({ sessionId, tool: "echo", input: { text }, callId: `call_${text}` });
    };
    await say("first");
    await seen.has("message.part.updated", { sessionID: sessions[1], part: { callID: "call_first" } });
    for (const [name, end] of [
      ["killed", service.kill],
      ["drained", service.stop],
    ] as const) {
      const comeBack = seen.leave();
      const errorCount = seen.errors.length;
      await end();
      await vi.waitFor(() => expect(seen.errors.length).toBeGreaterThan(errorCount), 30_000);
      await service.start();
      // Before the client is back, and after.
      await say(name);
      comeBack();
      for (const sessionID of sessions)
        await seen.has("message.part.updated", {
          sessionID,
          part: { callID: `call_${name}`, state: { status: "completed" } },
        });
      await say(`${name}-later`);
      for (const sessionID of sessions)
        await seen.has("message.part.updated", { sessionID, part: { callID: `call_${name}-later` } });
    }
    await seen.end();
    for (const sessionID of sessions) {
      const ids = seen.events
        .map(({ id }) => new RegExp(`^evt_${sessionID}_(\\d+)_0$`).exec(id)?.[1])
        .filter(Boolean)
        .map(Number);
      // Each event once, in order; an event of another kind has no counterpart here.
      expect(ids).toEqual([...ids].toSorted((a, b) => a - b).filter((id, index, all) => id !== all[index - 1]));
      const ended = seen.events.filter(
        ({ type, properties }) =>
          type === "message.part.updated" &&
          matches(properties, { sessionID, part: { state: { status: "completed" } } }),
      );
      expect(ended.map(({ properties }) => (properties.part as { callID: string }).callID)).toEqual(
        ["first", "killed", "killed-later", "drained", "drained-later"].map((name) => `call_${name}`),
      );
    }
  });
});

test("a question is answered, and another one dismissed", async () => {
  const person = await sdk("v2", "approver");
  const seen = await follow("v2", "approver");
  const { tools, newSession } = connect({ url: `http://127.0.0.1:${port}` }, "caller");
  const sessionId = await newSession();
  const options = [
    { label: "Redis", description: "" },
    { label: "SQLite", description: "" },
  ];
  const ask = (callId: string) =>
    tools.callTool({
      sessionId,
      callId,
      tool: "question",
      input: { questions: [{ question: "Which?", header: "Store", options }] },
    });
  const running = ask("call_answered");
  const { properties } = await seen.has("question.asked", { sessionID: sessionId });
  expect((await person.question.list()).data).toEqual([properties]);
  expect((await person.question.reply({ requestID: properties.id, answers: [["Redis"]] })).data).toBe(true);
  await seen.has("question.replied", { requestID: properties.id, answers: [["Redis"]] });
  expect((await running).part?.state.case).toBe("completed");
  const dismissed = ask("call_dismissed");
  const second = await seen.has("question.asked", { tool: { callID: "call_dismissed" } });
  expect((await person.question.reject({ requestID: second.properties.id })).data).toBe(true);
  await seen.has("question.rejected", { requestID: second.properties.id });
  expect((await dismissed).part?.state.case).toBe("error");
  await seen.end();
});

test("the program of docs/clients/opencode.md answers what is open and what is asked", async () => {
  const page = await readFile(join(import.meta.dirname, "../../docs/clients/opencode.md"), "utf8");
  const [, program = ""] = /^```ts\n([\s\S]*?)^```/m.exec(page) ?? [];
  const file = join(sdkFolder, "answer.mjs");
  await writeFile(file, program);
  const { tools, newSession } = connect({ url: `http://127.0.0.1:${port}` }, "caller");
  const sessionId = await newSession();
  const run = (command: string) => tools.callTool({ sessionId, tool: "bash", input: { command } });
  const open = run("touch open");
  await vi.waitFor(
    async () => expect((await (await sdk("v2", "approver")).permission.list()).data).toHaveLength(1),
    30_000,
  );
  const env = { ...process.env, TOOLGATE_URL: `http://127.0.0.1:${port}`, TOOLGATE_TOKEN: "approver-token-for-tests" };
  const child = spawn(process.execPath, [file], { env, stdio: ["ignore", "pipe", "inherit"] });
  onTestFinished(() => void child.kill("SIGKILL"));
  let printed = "";
  child.stdout.on("data", (chunk) => {
    printed += chunk;
  });
  expect((await open).part?.state.case).toBe("error");
  expect((await run("echo one two")).part?.state.case).toBe("completed");
  expect(printed).toContain("reject: touch open\nonce: ");
});

test("everything that was sent fits the types of the package", async () => {
  expect(new Set(recorded.map(({ type }) => type)).size).toBeGreaterThan(15);
  await compileRecorded(recorded);
  await expect(compileRecorded([{ type: "v2.Session", value: { id: 1 }, exact: true }])).rejects.toThrow("recorded.ts");
});
