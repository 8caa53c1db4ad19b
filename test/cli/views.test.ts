import { hostname } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { describe, expect, test } from "vitest";
import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  PermissionRequestSchema,
  RiskKind,
  ToolEffects,
  ToolErrorReason,
  ToolPartSchema,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolRegistration } from "../../gen/opencode/tool/v1/worker_pb.ts";
import { ListWorkersResponseSchema } from "../../gen/opencode/tool/v1/worker_service_pb.ts";
import { exitCodeOf, remainingOutput } from "../../src/cli/call/execute.ts";
import { workerLines } from "../../src/cli/commands/workers.ts";
import { askLines } from "../../src/cli/view/ask-view.ts";
import { partLines } from "../../src/cli/view/call-view.ts";
import { parseRule } from "../../src/cli/view/decision-view.ts";
import { commandLine, linkPlaces, momentOf } from "../../src/cli/view/words.ts";

const plain = (_: unknown, text: string) => text;
const failed = (reason: ToolErrorReason, effects: ToolEffects = ToolEffects.NONE) =>
  create(ToolPartSchema, { tool: "bash", state: { case: "error", value: { reason, effects, error: "It broke" } } });

test("workers are shown by fleet, with what waits for them, and what is refused", () => {
  const registered = { name: "ci_deploy", registration: ToolRegistration.REGISTERED };
  const refused = {
    name: "bash",
    registration: ToolRegistration.NAME_TAKEN,
    message: 'the name "bash" belongs to the service',
  };
  const own = { worker: "ci", principal: "ci-worker", workspaces: ["default"], replica: "r1", capacity: 4, seen: 5 };
  const { fleets, workers } = create(ListWorkersResponseSchema, {
    fleets: [
      { worker: "ci", principal: "ci-worker", tools: ["ci_deploy"], waiting: 2, seen: 5 },
      { worker: "old", principal: "ci-worker", tools: ["ci_old"], seen: 1_000 },
    ],
    workers: [
      {
        ...own,
        instanceId: "wrk_1",
        connected: true,
        running: 3,
        buildId: "b2",
        generation: 2n,
        tools: [registered, refused],
      },
      { ...own, instanceId: "wrk_2", sdk: "toolgate-go" },
    ],
  });
  expect(workerLines({ fleets, workers }, plain)).toEqual([
    "ci  1 connected, 1 away, runs 3 of 4, 2 calls wait  token ci-worker",
    "  tools ci_deploy",
    "  connected  wrk_1",
    `    runs 3 of 4, build b2, generation 2, workspaces default, last seen at ${momentOf(5)}, replica r1`,
    '    bash  the name "bash" belongs to the service',
    "  away  wrk_2",
    `    runs 0 of 4, workspaces default, toolgate-go, last seen at ${momentOf(5)}, replica r1`,
    `old  no process  token ci-worker, last seen at ${momentOf(1_000)}`,
    "  tools ci_old",
  ]);
});

describe("an ask", () => {
  const ask = create(PermissionRequestSchema, {
    permission: "bash",
    agent: "build",
    patterns: ["npm test", "npm run \u202ekcehc"],
    expires: 61_000,
    preview: { command: "npm test" },
    decisions: [
      { pattern: "npm test", action: PermissionAction.ASK, reason: "no rule matches" },
      { pattern: "npm run x", action: PermissionAction.ASK, reason: "no rule matches" },
      { pattern: "ls", action: PermissionAction.ALLOW, reason: "allowed by a rule" },
    ],
    offers: [{ text: "`npm test` in this session" }, { text: "what starts with npm" }],
  });

  test("shows what would run, why, what can be saved and the time left; each thing once", () => {
    expect(askLines(ask, plain, { now: 1_000 })).toEqual([
      "? bash, asked by build  1m 00s to answer",
      "  for      npm run \\u202ekcehc",
      "  command  npm test",
      "  why      no rule matches",
      "  always   1  `npm test` in this session",
      "           2  what starts with npm",
    ]);
  });

  test("shows what the command does not see", () => {
    const preview = { command: "ls", hidden: { count: 12, paths: [".env", "secrets/"] } };
    expect(askLines(create(PermissionRequestSchema, { permission: "bash", preview }), plain, { now: 0 })).toEqual([
      "? bash",
      "  command  ls",
      "  sandbox  the command cannot read 12 paths: .env, secrets/, …",
    ]);
  });

  test("says where a command runs, and that a directory is approved for one call", () => {
    const linesOf = (request: MessageInitShape<typeof PermissionRequestSchema>) =>
      askLines(create(PermissionRequestSchema, request), plain, { now: 0 });
    for (const [workdir, place] of [
      [".", "in the workspace"],
      ["sub", "in sub, inside the workspace"],
      ["/opt", "in /opt, outside the workspace"],
    ] as const)
      expect(linesOf({ permission: "bash", metadata: { workdir } })).toEqual(["? bash", `  place    ${place}`]);
    expect(linesOf({ permission: "external_directory", patterns: ["/etc/*"] })).toEqual([
      "? external_directory",
      "  for      /etc/*",
      "  once     approved once, only this call may reach it; later calls ask again",
    ]);
  });

  test("shows the text that the model will be given, whole and escaped", () => {
    const skill = {
      permission: "skill",
      patterns: ["deploy"],
      preview: { paths: ["/w/SKILL.md"], text: "first \u001b[2J\nsecond" },
    };
    expect(askLines(create(PermissionRequestSchema, skill), plain, { now: 0 })).toEqual([
      "? skill",
      "  for      deploy",
      "  paths    /w/SKILL.md",
      "  text     first \\x1b[2J",
      "           second",
    ]);
  });

  test("says of each command of a line which rule allows it or asks, where they differ", () => {
    const line = {
      permission: "bash",
      patterns: ["ls", "npm \u202et"],
      display: ["ls", "npm \u202et"],
      preview: { command: "ls && npm \u202et" },
      decisions: [
        { pattern: "ls", action: PermissionAction.ALLOW, reason: 'config rule 1 (bash "ls *" allow)' },
        { pattern: "npm \u202et", action: PermissionAction.ASK, reason: "no rule matches: ask" },
      ],
    };
    expect(askLines(create(PermissionRequestSchema, line), plain, { now: 0 })).toEqual([
      "? bash",
      '  for      ls  ← config rule 1 (bash "ls *" allow)',
      "           npm \\u202et  ← no rule matches: ask",
      "  command  ls && npm \\u202et",
    ]);
  });

  test("begins with the risks, the heaviest first, then what deceives", () => {
    const risky = {
      permission: "bash",
      patterns: ["curl x", "sh"],
      display: ["curl x", "curl x | sh"],
      warnings: ["it contains a soft hyphen"],
      risks: [
        { kind: RiskKind.NETWORK, parts: ["curl x"] },
        { kind: RiskKind.DOWNLOADED_CODE, parts: ["curl x | sh \u202e"] },
      ],
    };
    expect(askLines(create(PermissionRequestSchema, risky), plain, { now: 0 })).toEqual([
      "? bash",
      "  risk     runs downloaded code  curl x | sh \\u202e",
      "           uses the network  curl x",
      "  beware   it contains a soft hyphen",
      "  for      curl x",
      "           curl x | sh",
    ]);
  });

  test("shows how many lines a change adds and removes", () => {
    const preview = { diff: "+new\n", additions: 5_000, deletions: 12 };
    expect(askLines(create(PermissionRequestSchema, { permission: "edit", preview }), plain, { now: 0 })).toEqual([
      "? edit",
      "  change   +5000 −12 lines",
      "  +new",
    ]);
  });

  test("says how often the same call was made in a row", () => {
    const loop = { permission: "doom_loop", patterns: ["echo"], metadata: { tool: "echo", repeats: 2 } };
    expect(askLines(create(PermissionRequestSchema, loop), plain, { now: 0 })).toEqual([
      "? doom_loop",
      "  for      echo",
      "  again    the same call, 3 times in a row",
    ]);
  });

  test("shows the whole diff, coloured by line, and hides nothing in it", () => {
    const preview = { diff: "--- a\n+++ a\n@@ -1 +1 @@\n-old\n+new\x1b[8m\n" };
    const paint = (format: unknown, text: string) => `<${format}>${text}`;
    expect(
      askLines(create(PermissionRequestSchema, { permission: "edit", preview }), paint, { now: 0 }).slice(1),
    ).toEqual(["  <bold>--- a", "  <bold>+++ a", "  <cyan>@@ -1 +1 @@", "  <red>-old", "  <green>+new\\x1b[8m"]);
  });
});

describe("a call that ended", () => {
  test.each([
    ["INVALID_INPUT", 2],
    ["UNKNOWN_TOOL", 2],
    ["STALE_TOOL", 2],
    ["DENIED", 3],
    ["REJECTED", 3],
    ["EXPIRED", 3],
    ["FAILED", 1],
    ["INVALID_OUTPUT", 1],
    ["OUTPUT_LIMIT", 1],
    ["TIMEOUT", 4],
    ["CANCELLED", 4],
    ["EXECUTOR_LOST", 5],
    ["CHANGED_AFTER_APPROVAL", 1],
  ] as const)("with %s exits %i", (reason, code) => {
    expect(exitCodeOf(failed(ToolErrorReason[reason]))).toBe(code);
  });

  test("completed exits 0", () => {
    expect(exitCodeOf(create(ToolPartSchema, { state: { case: "completed", value: {} } }))).toBe(0);
  });

  test("says that it may have changed something, and what to do next", () => {
    expect(partLines(failed(ToolErrorReason.EXECUTOR_LOST, ToolEffects.UNKNOWN), { paint: plain })).toEqual([
      "✗ executor lost  bash",
      "  It broke",
      "  it may have changed something",
      "  next: check what it did before you call it again: a new call runs it again",
    ]);
  });

  const completed = create(ToolPartSchema, {
    tool: "bash",
    sessionId: "ses_1",
    state: {
      case: "completed",
      value: {
        title: "npm\ntest",
        time: { start: 0, end: 1_234 },
        metadata: {
          truncated: true,
          originalSize: 204_800,
          truncatedSize: 51_200,
          outputPath: "toolgate-output:out_1",
        },
        attachments: [{ mime: "image/png", filename: "a\u202eb.png", size: 2_048n, url: "toolgate-output:out_2" }],
      },
    },
  });

  test("says how to fetch what the model does not see, from the same server", () => {
    expect(partLines(completed, { paint: plain, url: "http://127.0.0.1:9" })).toEqual([
      "✓ completed  bash  npm test  1.2 s",
      "  output      the model sees 50.0 KiB of 200.0 KiB; the whole: toolgate output ses_1 toolgate-output:out_1 --server http://127.0.0.1:9",
      "  attachment  a\\u202eb.png  image/png  2.0 KiB  fetch it: toolgate output ses_1 toolgate-output:out_2 --server http://127.0.0.1:9 > FILE",
    ]);
  });

  test("of a task names the command that follows its subagent", () => {
    const task = create(ToolPartSchema, {
      ...{ tool: "task", childSessionId: "ses_2" },
      state: { case: "running", value: { title: "Look" } },
    });
    expect(partLines(task, { paint: plain, url: "http://127.0.0.1:9" })).toEqual([
      "● running  task  Look",
      "  subagent    toolgate watch ses_2 --server http://127.0.0.1:9",
    ]);
  });

  test("names no way to fetch what ends with the command", () => {
    expect(partLines(completed, { paint: plain }).join("\n")).not.toContain("toolgate output");
  });
});

describe("an output that was shown as it came", () => {
  test.each([
    ["is not shown again", "hello\n", "hello", false, ""],
    ["gets what was added to it", "hello\n", "hello\n(exit 1)", false, "(exit 1)"],
    ["that ended in the middle of a line gets what was added", "hello", "hello\n(exit 1)", false, "\n(exit 1)"],
    ["is whole, though the model sees less of it", "1\n2\n3\n", "…\n3", true, ""],
    ["and is not the result is followed by the result", "working", "42", false, "\n42"],
    ["with nothing in it is the result", "", "42", false, "42"],
  ])("%s", (_, shown, output, truncated, rest) => {
    expect(remainingOutput(output, shown, truncated)).toBe(rest);
  });
});

test("a rule may have blanks in its pattern", () => {
  expect(parseRule("bash git push * deny")).toEqual({ permission: "bash", pattern: "git push *", action: 3 });
});

test("what is no rule is refused with an example", () => {
  expect(() => parseRule("bash deny")).toThrow('"bash deny" is not a rule');
  expect(() => parseRule("bash git forbid")).toThrow('"bash git forbid" is not a rule');
});

test("a printed command can be pasted: odd words are quoted", () => {
  expect(commandLine("toolgate", "call", "bash", `{"command":"echo 'hi'; rm x"}`)).toBe(
    `toolgate call bash '{"command":"echo '\\''hi'\\''; rm x"}'`,
  );
});

test("places in an output are links to files of this machine, those of missing files are text", () => {
  const directory = join(import.meta.dirname, "..");
  const place = (path: string, line: number, column: number) => ({ path, line, column });
  const places = [
    ...[place("cli/views.test.ts", 1, 1), place("cli/views.test.ts", 1, 10), place("cli/a b.ts", 2, 1)],
    ...[place("e2e/lsp.test.ts", 3, 2), place("cli/entry.ts", 4, 1)],
  ];
  const part = create(ToolPartSchema, { state: { case: "completed", value: { metadata: { directory, places } } } });
  const output = [
    ...["cli/views.test.ts:1:10: cli/views.test.ts:1:1", "cli/a b.ts:2:1: x", "error at 3:2: no \\x1b"],
    '"path": "cli/entry.ts",',
  ].join("\n");
  const link = (file: string, line: number, text: string) =>
    `\x1b]8;;${pathToFileURL(join(directory, file)).href.replace("//", `//${hostname()}`)}#${line}\x1b\\${text}\x1b]8;;\x1b\\`;
  expect(linkPlaces(output, part)).toBe(
    [
      `cli/views.test.ts:1:10: ${link("cli/views.test.ts", 1, "cli/views.test.ts:1:1")}`,
      "cli/a b.ts:2:1: x",
      `error ${link("e2e/lsp.test.ts", 3, "at 3:2")}: no \\x1b`,
      `${link("cli/entry.ts", 4, '"path": "cli/entry.ts"')},`,
    ].join("\n"),
  );
  expect(linkPlaces(output, create(ToolPartSchema, {}))).toBe(output);
});
