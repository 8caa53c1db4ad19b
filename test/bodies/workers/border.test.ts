import { symlink } from "node:fs/promises";
import { join } from "node:path";
import { type MessageInitShape, toJsonString } from "@bufbuild/protobuf";
import { describe, expect, onTestFinished, test } from "vitest";
import { PermissionReply, ToolEffects, ToolErrorReason } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import {
  ToolRegistration,
  WorkerFailure,
  type WorkerPlannedSchema,
  type WorkerStart,
  WorkerStartSchema,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { connect, refusal } from "../../e2e/clients.ts";
import { read } from "../../e2e/reading.ts";
import { useService } from "../../e2e/service.ts";
import { connectWorker, echoTool, newInstance, openWorker, type RawHello } from "./raw-worker.ts";

const tokens = {
  ci: 'permissions = ["*"]',
  reader: 'permissions = ["read", "edit", "list", "glob", "grep", "webfetch", "external_directory"]',
  other: "",
  idempotent: "idempotent = true",
  crowd: "",
  many: "",
  // Of another definition than any that the tests declare.
  pinned: `pin = ["${"0".repeat(32)}"]`,
};
type Token = keyof typeof tokens;
const settings = [
  '[permission]\n"*_tool" = "allow"\nci_own = "ask"\nrollout = "allow"',
  ...Object.entries(tokens).map(
    ([id, limits]) =>
      `[[token]]\nid = "${id}"\nroles = ["worker"]\ntools = ["${id}_*"]\n${limits}\nvalue = "${id}-worker-token-for-tests"`,
  ),
].join("\n");
type Worker = Awaited<ReturnType<typeof connectWorker>>;
const service = useService({ settings });
const agent = () => connect(service, "caller");
const person = () => connect(service, "approver");

/** Connects a worker of a token, whose line is cut after the test. */
async function workerOf(id: Token, hello: RawHello = {}) {
  const worker = await connectWorker(service, {
    token: `${id}-worker-token-for-tests`,
    tools: [echoTool(`${id}_tool`)],
    ...hello,
  });
  onTestFinished(worker.cut);
  return worker;
}

/** Resolves with the state in which a call ends. */
async function call(tool: string, fields: { text?: string; sessionId?: string; queueMs?: number } = {}) {
  const { text = "hello", ...others } = fields;
  const { part } = await agent().tools.callTool({ tool, input: { text }, waitMs: 60_000, ...others });
  return part?.state;
}

/** Answers each plan that the service wants, as often as it does. */
async function answerPlans(worker: Worker, planned: () => MessageInitShape<typeof WorkerPlannedSchema>): Promise<void> {
  for (;;) {
    const { planId } = await worker.next("plan");
    worker.send({ case: "planned", value: { ...planned(), planId } });
  }
}

/** The error that ends the stream of a worker. */
const refused = (worker: { ended: Promise<unknown> }) => refusal(worker.ended.then((error) => Promise.reject(error)));

/** Runs a call of a tool to its end, to see that nothing was lost. */
async function works(worker: Worker, tool: string): Promise<void> {
  const calling = call(tool, { text: "still" });
  worker.complete(await worker.next("start"), "works");
  expect(await calling).toMatchObject({ case: "completed", value: { output: "works" } });
}

/** Kinds that rules may allow by default, or that the service asks itself. */
const closed = [
  ...["bash", "edit", "read", "list", "glob", "grep", "lsp", "webfetch", "websearch", "external_directory"],
  ...["doom_loop", "task", "question", "write", "claude:Bash", "*", "rea?"],
];

describe("what a token does not allow is refused by name", () => {
  test.each(closed)("the permission %s in a template, in a plan and in a body", async (permission) => {
    const ask = { permission, patterns: ["x"] };
    const worker = await workerOf("ci", {
      tools: [echoTool("ci_template", { permissions: [ask] }), echoTool("ci_tool", { plans: true })],
    });
    expect(worker.welcome.tools).toMatchObject([
      { registration: ToolRegistration.NOT_YOURS, message: expect.stringContaining(`"${permission}", which belongs`) },
      { registration: ToolRegistration.REGISTERED },
    ]);
    const wrong = { reason: ToolErrorReason.FAILED, error: expect.stringContaining("belongs to the service") };
    let asks = [ask];
    void answerPlans(worker, () => ({ asks }));
    expect(await call("ci_tool")).toMatchObject({ value: { ...wrong, effects: ToolEffects.NONE } });
    expect(worker.untaken("start")).toBe(0);
    asks = [];
    const entered = call("ci_tool");
    const request = { number: 1, request: { case: "ask", value: ask } } as const;
    worker.report(await worker.next("start"), { case: "request", value: request });
    expect(await entered).toMatchObject({ value: wrong });
  });

  test("a token that names a permission of the service lends it; paths are judged as text", async () => {
    const lent = ["read", "edit", "list", "glob", "grep", "webfetch", "external_directory"];
    const permissions = lent.map((permission) => ({ permission, patterns: ["{text}"] }));
    const worker = await workerOf("reader", {
      tools: [
        echoTool("reader_tool"),
        echoTool("reader_all", { permissions }),
        echoTool("reader_bash", { permissions: [{ permission: "bash", patterns: ["x"] }] }),
      ],
    });
    const { REGISTERED, NOT_YOURS } = ToolRegistration;
    expect(worker.welcome.tools.map(({ registration }) => registration)).toEqual([REGISTERED, REGISTERED, NOT_YOURS]);
    // A link, which leads elsewhere on this disk: the file is on that of the worker.
    await symlink("/etc", join(service.workspace, "link"));
    const sessionId = await agent().newSession();
    const calling = call("reader_tool", { sessionId });
    const start = await worker.next("start");
    const ask = async (number: number, permission: string, pattern: string) => {
      worker.report(start, {
        case: "request",
        value: { number, request: { case: "ask", value: { permission, patterns: [pattern] } } },
      });
      return await worker.next("answer");
    };
    expect(await ask(1, "read", "link/hostname")).toMatchObject({ answer: { case: undefined } });
    const outside = ask(2, "read", "/srv/notes.txt");
    const open = async () => (await person().permissions.listPermissions({ sessionId })).permissions;
    await expect.poll(open).toMatchObject([{ permission: "external_directory", patterns: ["/srv/*"] }]);
    const [request] = await open();
    await person().permissions.respondToPermission({
      sessionId,
      permissionId: request?.id ?? "",
      reply: PermissionReply.ONCE,
    });
    await outside;
    worker.complete(start, "read");
    expect(await calling).toMatchObject({ value: { output: "read" } });
  });

  test("the permission of the tool's own name is judged, whatever the tool declares", async () => {
    const permissions = [{ permission: "rollout", patterns: ["{text}"] }];
    const worker = await workerOf("ci", { tools: [echoTool("ci_own", { permissions })] });
    const sessionId = await agent().newSession();
    const calling = call("ci_own", { sessionId });
    const open = async () => (await person().permissions.listPermissions({ sessionId })).permissions;
    await expect.poll(open).toMatchObject([{ permission: "ci_own" }]);
    const [request] = await open();
    const answer = { sessionId, permissionId: request?.id ?? "", reply: PermissionReply.REJECT };
    await person().permissions.respondToPermission(answer);
    expect(await calling).toMatchObject({ value: { reason: ToolErrorReason.REJECTED } });
    expect(worker.untaken("start")).toBe(0);
  });

  test("a definition that is not pinned, with the ID to pin", async () => {
    const { welcome } = await workerOf("pinned");
    const [tool] = welcome.tools;
    expect(tool).toMatchObject({
      registration: ToolRegistration.NOT_YOURS,
      message: expect.stringContaining("is not pinned by its token"),
      definitionId: expect.stringMatching(/^[0-9a-f]{32}$/),
    });
  });

  test("a call of a body, if the token names no tools", async () => {
    const worker = await workerOf("other");
    const calling = call("other_tool");
    const start = await worker.next("start");
    const calls = { calls: [{ tool: "read", input: { filePath: "secret" } }] };
    worker.report(start, { case: "request", value: { number: 1, request: { case: "calls", value: calls } } });
    expect((await worker.next("answer")).answer).toMatchObject({
      value: expect.stringContaining('may call no tools, and not "read"'),
    });
    worker.complete(start);
    expect((await calling)?.case).toBe("completed");
  });

  test("more than 200 tools of a token", async () => {
    const named = (from: number, count: number) =>
      Array.from({ length: count }, (_, at) => echoTool(`crowd_${from + at}`));
    await workerOf("crowd", { tools: named(0, 150) });
    const { welcome } = await workerOf("crowd", { tools: [echoTool("crowd_149"), ...named(150, 52)] });
    const outcomes = welcome.tools.map(({ registration }) => registration === ToolRegistration.REGISTERED);
    expect(outcomes).toEqual([...Array.from({ length: 51 }, () => true), false, false]);
    expect(welcome.tools.at(-1)?.message).toContain("200 tools, the limit");
  });

  test("more than 50 processes of a token, until one of them is gone", async () => {
    const hello = { resumeMs: 0 };
    const workers = await Promise.all(Array.from({ length: 50 }, () => workerOf("many", hello)));
    const one = { token: "many-worker-token-for-tests", tools: [echoTool("many_tool")] };
    expect(await refused(openWorker(service, one))).toMatchObject({
      reason: "QUOTA_EXCEEDED",
      metadata: { limit: "worker_processes" },
    });
    // The limit is that of one token.
    await works(await workerOf("ci"), "ci_tool");
    workers[0]?.cut();
    const isAccepted = () =>
      workerOf("many", hello).then(
        () => true,
        () => false,
      );
    await expect.poll(isAccepted).toBe(true);
  });

  test("a second run of a body, although its tool calls itself idempotent", async () => {
    const tools = [echoTool("other_tool", { annotations: { idempotent: true } })];
    const lost = await workerOf("other", { tools, resumeMs: 100 });
    const calling = call("other_tool");
    await lost.next("start");
    const idle = await workerOf("other", { tools });
    lost.cut();
    const unknown = { reason: ToolErrorReason.EXECUTOR_LOST, effects: ToolEffects.UNKNOWN };
    expect(await calling).toMatchObject({ value: unknown });
    await works(idle, "other_tool");
    expect(idle.untaken("start")).toBe(0);
  });
});

test("a body whose token and tool say so is entered again at another process, after its own is gone", async () => {
  const tools = [echoTool("idempotent_tool", { annotations: { idempotent: true } })];
  const lost = await workerOf("idempotent", { tools, resumeMs: 100 });
  const calling = call("idempotent_tool");
  const first = await lost.next("start");
  const next = await workerOf("idempotent", { tools });
  lost.cut();
  const second = await next.next("start");
  expect(second.assignment).not.toBe(first.assignment);
  next.complete(second, "twice");
  expect(await calling).toMatchObject({ case: "completed", value: { output: "twice" } });
});

describe("messages about what is another's have no effect", () => {
  test.each<[string, () => Promise<Worker>]>([
    ["principal", () => workerOf("other")],
    ["process", () => workerOf("ci", { tools: [echoTool("ci_idle")] })],
  ])("of another %s: report, known, held and plan", async (_who, connectStranger) => {
    const worker = await workerOf("ci", { tools: [echoTool("ci_tool", { plans: true })] });
    const stranger = await connectStranger();
    const calling = call("ci_tool");
    const { planId } = await worker.next("plan");
    stranger.send({ case: "planned", value: { planId, problem: "stolen" } });
    worker.send({ case: "planned", value: { planId } });
    void answerPlans(worker, () => ({}));
    const start = await worker.next("start");
    stranger.complete(start, "stolen");
    expect(await stranger.next("ended")).toMatchObject({ assignment: start.assignment, recorded: false });
    for (const entered of [false, true])
      stranger.send({ case: "known", value: { assignment: start.assignment, entered } });
    await stranger.next("ended");
    worker.complete(start, "own");
    expect(await calling).toMatchObject({ case: "completed", value: { output: "own" } });
    expect(worker.untaken("start")).toBe(0);
  });

  test.each(["unknown", "x".repeat(22), `${"A".repeat(22)}/ses_none/call_none`])(
    "of an assignment that never was: %s",
    async (assignment) => {
      const worker = await workerOf("ci", { held: [assignment] });
      expect(await worker.next("ended")).toMatchObject({ assignment, recorded: false });
      worker.complete({ assignment });
      expect(await worker.next("ended")).toMatchObject({ assignment, recorded: false });
      worker.send({ case: "known", value: { assignment, entered: false } });
      worker.send({ case: "planned", value: { planId: assignment } });
      await works(worker, "ci_tool");
    },
  );
});

describe("a message that breaks a rule", () => {
  test.each<[string, Parameters<Worker["send"]>[0], string]>([
    ["is only for tool processes", { case: "inited", value: {} }, "INVALID_MESSAGE"],
    ["declares too much capacity", { case: "capacity", value: { capacity: 10_001 } }, "INVALID_MESSAGE"],
    ["reports of no body", { case: "report", value: { report: { case: "progress", value: {} } } }, "INVALID_MESSAGE"],
    [
      "reports nothing of a body whose name is too long",
      { case: "report", value: { assignment: "a".repeat(321) } },
      "INVALID_MESSAGE",
    ],
    ["has no assignment", { case: "known", value: { entered: true } }, "INVALID_MESSAGE"],
  ])("and %s ends the stream; the calls of the process go on over the next one", async (_rule, message, reason) => {
    const instanceId = newInstance();
    const before = await workerOf("ci", { instanceId });
    const calling = call("ci_tool");
    const { assignment } = await before.next("start");
    before.send(message);
    expect(await refused(before)).toMatchObject({ reason });
    const worker = await workerOf("ci", { instanceId, connection: 2n, held: [assignment] });
    worker.complete({ assignment }, "kept");
    expect(await calling).toMatchObject({ case: "completed", value: { output: "kept" } });
  });

  const output = (offset: number, data: Uint8Array, blob = 0) =>
    ({ case: "output", value: { blob, offset: BigInt(offset), data } }) as const;
  const piece = Buffer.alloc(262_144, "a");
  test.each<[string, (worker: Worker, start: WorkerStart) => void, string]>([
    [
      "makes more than 64 requests at a time",
      (worker, start) => {
        const ask = { permission: "ci_own", patterns: ["x"] };
        for (let number = 1; number <= 65; number++)
          worker.report(start, { case: "request", value: { number, request: { case: "ask", value: ask } } });
      },
      "more than 64 requests",
    ],
    [
      "makes more than 32 calls in one request",
      (worker, start) => {
        const calls = { calls: Array.from({ length: 33 }, () => ({ tool: "read", input: {} })) };
        worker.report(start, { case: "request", value: { number: 1, request: { case: "calls", value: calls } } });
      },
      "breaks a rule of the contract: report.request.calls.calls",
    ],
    [
      "asks for nothing",
      (worker, start) => {
        const ask = { permission: "ci_own", patterns: [] };
        worker.report(start, { case: "request", value: { number: 1, request: { case: "ask", value: ask } } });
      },
      "patterns",
    ],
    [
      "reports a number that JSON cannot hold",
      (worker, start) => worker.report(start, { case: "progress", value: { metadata: { a: Number.NaN } } }),
      "metadata.a is a number that JSON cannot hold",
    ],
    [
      "reports nothing",
      (worker, start) => worker.send({ case: "report", value: { assignment: start.assignment } }),
      "exactly one field",
    ],
    [
      "sends an attachment of more than 5 MiB",
      (worker, start) => {
        for (let at = 0; at < 21; at++) worker.report(start, output(at * piece.length, piece, 1));
      },
      "bytes",
    ],
    [
      "returns a file that it did not get",
      (worker, start) =>
        worker.report(start, {
          case: "result",
          value: {
            outcome: { case: "completed", value: { attachments: [{ blob: 1, part: { url: "file:///etc/passwd" } }] } },
          },
        }),
      "no call of it returned",
    ],
    [
      "returns more than 1 MiB at once",
      (worker, start) => worker.complete(start, "x".repeat(1_048_577)),
      "more than 1048576 characters at once",
    ],
  ])("in a body that %s ends its call FAILED, and no other", async (_rule, breakIt, error) => {
    const worker = await workerOf("ci");
    const [broken, whole] = [call("ci_tool", { text: "broken" }), call("ci_tool", { text: "whole" })];
    const starts = [await worker.next("start"), await worker.next("start")];
    const of = (text: string) => starts.find(({ call }) => call?.input?.text === text) as WorkerStart;
    breakIt(worker, of("broken"));
    expect(await broken).toMatchObject({
      value: { reason: ToolErrorReason.FAILED, error: expect.stringContaining(error) },
    });
    expect(await worker.next("ended")).toMatchObject({ assignment: of("broken").assignment });
    worker.complete(of("whole"), "whole");
    expect(await whole).toMatchObject({ case: "completed", value: { output: "whole" } });
  });

  test("in a plan ends its call FAILED before its body is entered, and no other", async () => {
    const worker = await workerOf("ci", { tools: [echoTool("ci_whole_tool"), echoTool("ci_tool", { plans: true })] });
    const whole = call("ci_whole_tool");
    const start = await worker.next("start");
    const broken = call("ci_tool");
    void answerPlans(worker, () => ({ title: "x".repeat(1_025) }));
    const error = expect.stringContaining("planned.title");
    expect(await broken).toMatchObject({
      value: { reason: ToolErrorReason.FAILED, error, effects: ToolEffects.NONE },
    });
    expect(worker.untaken("start")).toBe(0);
    worker.complete(start, "whole");
    expect(await whole).toMatchObject({ case: "completed", value: { output: "whole" } });
  });
});

test("text of a worker is shown without hidden characters, and its plan as its word", async () => {
  const hidden = "a\u202eb\u001b[2Jc";
  const shown = "a\\u{202e}b\\u{1b}[2Jc";
  const worker = await workerOf("ci", { tools: [echoTool("ci_own", { plans: true })] });
  const sessionId = await agent().newSession();
  let planned: MessageInitShape<typeof WorkerPlannedSchema> = {
    title: hidden,
    preview: { text: hidden, command: hidden },
  };
  void answerPlans(worker, () => planned);
  const calling = call("ci_own", { sessionId });
  const open = async () => (await person().permissions.listPermissions({ sessionId })).permissions;
  await expect.poll(open).toHaveLength(1);
  const [request] = await open();
  expect(request).toMatchObject({ preview: { text: `As ci says:\n${shown}`, command: shown } });
  const answer = { sessionId, permissionId: request?.id ?? "", reply: PermissionReply.ONCE };
  await person().permissions.respondToPermission(answer);
  const start = await worker.next("start");
  expect(start.title).toBe(`${shown} (as ci says)`);
  const watcher = read(connect(service, "watcher").tools.watchSession({ sessionId }));
  worker.report(start, { case: "progress", value: { title: hidden } });
  // Others say that the call waits.
  const { event } = await watcher.find(({ event }) => event.case === "progress" && event.value.title?.at(0) === "a");
  expect(event.value).toMatchObject({ title: shown });
  const result = { case: "failed", value: { kind: WorkerFailure.EXPECTED, message: hidden } } as const;
  worker.report(start, { case: "result", value: { outcome: result } });
  expect(await calling).toMatchObject({ value: { error: shown } });

  planned = { problem: hidden };
  expect(await call("ci_own", { sessionId })).toMatchObject({
    value: { reason: ToolErrorReason.FAILED, error: shown },
  });
});

test("hostile schemas are refused by name, and calls go on meanwhile", async () => {
  const worker = await workerOf("ci");
  const nested = (levels: number): object =>
    levels === 0 ? {} : { type: "object", properties: { a: nested(levels - 1) } };
  const hostile: [object, string][] = [
    [nested(17), "more than 32 levels"],
    [{ type: "object", description: "x".repeat(70_000) }, "bytes as JSON"],
    [{ type: "object", properties: { a: { pattern: "(a?){1000}a{1000}" } } }, "repeat too much"],
    [{ type: "object", allOf: [{ $ref: "#" }] }, "without end"],
    [{ type: "object", $ref: "https://example.com/schema.json" }, "not a place in this schema"],
  ];
  const tools = hostile.map(([inputSchema], at) => echoTool(`ci_hostile_${at}`, { inputSchema: inputSchema as never }));
  for (let round = 0; round < 5; round++) {
    const [{ welcome }] = await Promise.all([workerOf("ci", { tools }), works(worker, "ci_tool")]);
    expect(welcome.tools).toMatchObject(
      hostile.map(([, message]) => ({
        registration: ToolRegistration.INVALID,
        message: expect.stringContaining(message),
      })),
    );
  }
  // More levels than a message may have.
  const deep = openWorker(service, {
    token: "ci-worker-token-for-tests",
    tools: [echoTool("ci_deep", { inputSchema: nested(500) as never })],
  });
  const [error] = await Promise.all([refused(deep), works(worker, "ci_tool")]);
  expect(error).toMatchObject({ message: expect.stringContaining("maximum recursion depth") });
});

test("a pattern with nested repetition costs its caller nothing", async () => {
  const inputSchema = { type: "object", properties: { text: { type: "string", pattern: "^(a|a)*$" } } };
  const worker = await workerOf("ci", { tools: [echoTool("ci_tool", { inputSchema })] });
  // A backtracking engine would take 2^60 steps.
  const slow = call("ci_tool", { text: `${"a".repeat(60)}!` });
  expect(await slow).toMatchObject({ value: { reason: ToolErrorReason.INVALID_INPUT } });
  expect(worker.untaken("start")).toBe(0);
});

test("a worker gets no path of the service", async () => {
  const worker = await workerOf("ci");
  const calling = call("ci_tool");
  const start = await worker.next("start");
  expect(toJsonString(WorkerStartSchema, start)).not.toContain(service.workspace);
  worker.complete(start);
  await calling;
});
