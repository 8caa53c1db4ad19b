import { existsSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { create } from "@bufbuild/protobuf";
import { expect, onTestFinished, test, vi } from "vitest";
import {
  AuditEntrySchema,
  DecisionFactsSchema,
  DecisionKind,
  DecisionRecordSchema,
  PermissionAction,
  PermissionLayer,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  SimulatePolicyRequestSchema,
  type SimulationSummary,
} from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import packageJson from "../../package.json" with { type: "json" };
import { placeId, rulesId } from "../../src/call/decision-facts.ts";
import type { CallRecord } from "../../src/call/ports.ts";
import { createSimulation } from "../../src/call/simulation.ts";
import { pendingPart } from "../../src/call/state.ts";
import { createPolicyParts } from "../../src/compose/policy.ts";
import type { Rule } from "../../src/policy/rules.ts";

const rules = { config: [], agents: new Map() };
const directory = "/workspace";
const { policy, layersFor, policyDigest } = createPolicyParts(
  {
    dataDirectory: "/data",
    serviceDirectory: "/data",
    loginFile: "/login",
    file: "/config.toml",
    workspaces: new Map(),
  },
  rules,
);
const noLayers = { wide: [], narrow: [] };
/** The facts of `read note.txt`, which the built-in rules allow. */
const facts = {
  version: packageJson.version,
  rules: rulesId(policyDigest(), noLayers),
  place: placeId(policy.fileRules(noLayers), undefined),
  action: PermissionAction.ALLOW as PermissionAction,
  workspace: "default",
  directory,
  recorded: JSON.stringify({
    tool: "read",
    asks: [{ permission: "read", patterns: ["note.txt"], paths: [`${directory}/note.txt`] }],
  }),
};

/** Simulates a candidate on one decision for each of the facts. */
async function simulate(
  candidateToml: string,
  all: readonly (Partial<typeof facts> | undefined)[],
  more: Partial<Parameters<typeof createSimulation>[0]> = {},
) {
  const entries = all.map((more, i) =>
    create(AuditEntrySchema, {
      seq: BigInt(i + 1),
      record: create(DecisionRecordSchema, {
        ...{ kind: DecisionKind.ALLOWED, sessionId: "ses_1", callId: `call_${i}`, agent: "build", tool: "read" },
        ...(more && { facts: create(DecisionFactsSchema, { ...facts, ...more }) }),
      }),
    }),
  );
  const simulation = createSimulation({
    ...{ policy, layersFor, policyDigest, rules },
    sessions: { list: async () => [create(SessionSchema, { id: "ses_1", rootSessionId: "ses_1" })] },
    listDecisions: async ({ afterSeq, limit }) => entries.slice(afterSeq, afterSeq + limit),
    listAudits: async () => [],
    getCall: async () => undefined,
    ...more,
  });
  const principal = {
    id: "ann",
    roles: new Set(["approver" as const]),
    agents: [],
    workspaces: ["*"],
    lineage: ["ann"] as const,
    answersOwn: true,
  };
  const run = () =>
    simulation.simulate(
      principal,
      create(SimulatePolicyRequestSchema, { candidateToml }),
      new AbortController().signal,
    );
  let summary: SimulationSummary | undefined;
  for await (const { kind } of run()) if (kind.case === "summary") summary = kind.value;
  return { summary, run };
}

test("a record that is damaged or does not suffice is counted with the reason, and never guessed", async () => {
  const asking = { tool: "read", asks: [{ permission: "read", patterns: ["note.txt"] }] };
  const command = { tool: "bash", asks: [{ permission: "bash", patterns: ["cat note.txt"], cwd: directory }] };
  const { summary } = await simulate(
    '[permission.read]\n"*" = { action = "deny", when = "input.filePath == \'x\'" }\n',
    [
      undefined,
      ...[
        "",
        "{",
        "null",
        '{"asks":[{"permission":7,"patterns":["x"]}]}',
        '{"asks":[{}],"session":[[1]]}',
        '{"asks":[],"gitFiles":{}}',
      ].map((recorded) => ({ recorded })),
      { place: "0123456789abcdef" },
      { recorded: JSON.stringify(command), action: PermissionAction.ASK },
      { recorded: JSON.stringify(asking) },
      { version: "0.0.1", action: PermissionAction.DENY },
    ],
  );
  expect(summary).toMatchObject({ decisions: 11, judged: 0, changed: 0, unfaithful: 0, leftOut: 0 });
  expect(summary?.notJudged.map(({ reason, decisions }) => [reason, decisions])).toEqual([
    ["its record has no facts: an earlier version wrote it, or no rule decided", 1],
    ["more than a record holds", 1],
    ["a record is damaged", 5],
    ["the sandbox or the protected files differ from then", 1],
    ["what was found of the files that it names is not recorded", 1],
    ["the input that a condition uses is not recorded", 1],
    [
      "version 0.0.1 decided otherwise by the same rules, such as read note.txt was deny, and is allow when it is repeated",
      1,
    ],
  ]);
});

test("a condition is judged by the input of the call while that is stored unchanged, and never guessed after", async () => {
  const about = { recorded: JSON.stringify({ tool: "read", asks: [{ permission: "read", patterns: ["note.txt"] }] }) };
  const inputs: Record<string, Parameters<typeof pendingPart>[0]["input"]> = {
    call_0: { offset: 5 },
    call_1: { offset: 50 },
    call_2: { offset: 50 },
    call_3: { offset: 5 },
  };
  const getCall = async (sessionId: string, callId: string) => {
    const input = inputs[callId];
    if (!input) return undefined;
    const ids = { id: callId, sessionId, messageId: "", callId, tool: "read", agent: "build", requester: undefined };
    const part = pendingPart({ ...ids, input });
    const was = callId === "call_3" ? { ...part, originalInput: { offset: 50 } } : part;
    return { part: was } as CallRecord;
  };
  const { summary } = await simulate(
    '[permission.read]\n"*" = { action = "ask", when = "input.offset > 10" }\n',
    Array.from({ length: 5 }, () => about),
    { getCall },
  );
  expect(summary).toMatchObject({ decisions: 5, judged: 3, changed: 2, asksAdded: 2, unfaithful: 0 });
  expect(summary?.notJudged).toMatchObject([
    { reason: "the input that a condition uses is not recorded", decisions: 2 },
  ]);
});

test("a fault of the judgement ends the simulation, and does not count as a damaged record", async () => {
  const broken = { pattern: "*" } as Rule;
  const lists = [{ layer: PermissionLayer.WORKSPACE, rules: [broken] }];
  const failing = simulate("", [facts], { layersFor: () => ({ wide: [], narrow: lists }) });
  await expect(failing).rejects.toThrow(TypeError);
});

test("a decision that the same rules now make otherwise makes the result unfaithful, with an example", async () => {
  const { summary } = await simulate("", [{}, { action: PermissionAction.DENY }]);
  expect(summary).toMatchObject({ judged: 1, changed: 0, unfaithful: 1 });
  expect(summary?.unfaithfulExample).toBe("read note.txt was deny, and is allow when it is repeated");
});

test("a candidate of pathological rules is judged within its time, and a principal has one simulation at a time", async () => {
  const slow = Array.from({ length: 4_000 }, (_, i) => `"${"*a".repeat(8)}${i}" = "allow"`).join("\n");
  const { summary, run } = await simulate(`[permission.read]\n${slow}\n`, [
    { recorded: JSON.stringify({ asks: [{ permission: "read", patterns: ["a".repeat(4_000)] }] }) },
  ]);
  expect(summary).toMatchObject({ decisions: 1, judged: 1, changed: 1, asksAdded: 1 });
  const first = run();
  const begun = first.next();
  await expect(run().next()).rejects.toMatchObject({ metadata: { limit: "simulation_ms" } });
  await begun;
  await first.return(undefined);
});

test("a thread that fails while the store is read ends its simulation, and nothing else", async () => {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-thread-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  const [file, ended] = [join(folder, "thread.mjs"), join(folder, "ended")];
  await writeFile(
    file,
    `import { writeFileSync } from "node:fs";
import { parentPort } from "node:worker_threads";
parentPort.postMessage({ usedMs: 0 });
process.on("exit", () => writeFileSync(${JSON.stringify(ended)}, ""));
setImmediate(() => { throw new Error("the thread is broken"); });`,
  );
  const failing = simulate("", [facts], {
    entry: pathToFileURL(file),
    async listDecisions() {
      await vi.waitUntil(() => existsSync(ended));
      // The error arrives by an event.
      for (let turn = 0; turn < 20; turn += 1) await setImmediate();
      return [];
    },
  });
  await expect(failing).rejects.toThrow("the thread is broken");
});
