import { readFileSync, statSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import { describe, expect, test } from "vitest";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply, ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { answerNext } from "../agents/connectors.ts";
import { recordedClaudeHook, recordedLines } from "../hooks/recorded.ts";
import { clientOf } from "./clients.ts";
import { createHookHome } from "./hook-process.ts";
import { hostTokens } from "./host.ts";
import { useService } from "./service.ts";

const service = useService({
  settings: `[permission.bash]\n"touch *" = "allow"\n"echo *" = "allow"\n"exit *" = "deny"\n"rm *" = "ask"\n${hostTokens}`,
});

/** An agent whose hooks were recorded from its real program, which ran `touch marker; echo hi` and `exit 3`. */
interface Recorded {
  file: string;
  tool: string;
  /** The field of the hook with the input. */
  input: string;
  allowed: object;
  denied(reason: unknown): object;
  edited(input: object): object;
}

const preToolUse = (fields: object) => ({ hookSpecificOutput: { hookEventName: "PreToolUse", ...fields } });

const agents: Readonly<Record<string, Recorded>> = {
  codex: {
    file: "codex-0.169.0",
    ...{ tool: "Bash", input: "tool_input", allowed: {} },
    denied: (permissionDecisionReason) => preToolUse({ permissionDecision: "deny", permissionDecisionReason }),
    edited: (updatedInput) => preToolUse({ permissionDecision: "allow", updatedInput }),
  },
  gemini: {
    file: "gemini-0.61.0",
    ...{ tool: "run_shell_command", input: "tool_input", allowed: { decision: "allow" } },
    denied: (reason) => ({ decision: "deny", reason }),
    edited: (tool_input) => ({ decision: "allow", hookSpecificOutput: { tool_input } }),
  },
  copilot: {
    file: "copilot-1.0.102",
    ...{ tool: "bash", input: "toolArgs" },
    allowed: { permissionDecision: "allow", permissionDecisionReason: "Allowed by Toolgate." },
    denied: (permissionDecisionReason) => ({ permissionDecision: "deny", permissionDecisionReason }),
    edited: (modifiedArgs) => ({ permissionDecision: "allow", modifiedArgs }),
  },
};

async function partsOf(tool: string): Promise<ToolPart[]> {
  const { sessions } = await clientOf(SessionService, service.url, "admin-token-for-tests").listSessions({});
  const tools = clientOf(ToolService, service.url, "admin-token-for-tests");
  const pages = await Promise.all(sessions.map(({ id }) => tools.listToolParts({ sessionId: id })));
  return pages.flatMap(({ parts }) => parts).filter((part) => part.tool === tool);
}

describe.each(Object.entries(agents))("a hook of %s", (kind, agent) => {
  const name = `${kind}:${agent.tool}`;
  const lines = () => recordedLines(agent.file, service.workspace);

  function send(line: string, server = service.url) {
    const { run, tokenFile } = createHookHome("host-token-for-tests");
    const proof = ["--uid", String(process.getuid?.())];
    const more = (text: string) => run([kind, "--server", server, "--token-file", tokenFile, ...proof], text);
    return { more, ran: more(line) };
  }

  /** The recorded hook before or after the first command, as another use with another input. */
  function other(when: "before" | "after", id: string, input: JsonObject): string {
    const recorded = JSON.parse(lines()[when === "before" ? 0 : 1] ?? "");
    return JSON.stringify({ ...recorded, tool_use_id: id, timestamp: id, [agent.input]: input });
  }

  test("lets what the rules allow run, in silence where the agent wants it, and reports the result", async () => {
    const { more, ran } = send(lines()[0] ?? "");
    expect(await ran).toMatchObject({ code: 0, answer: agent.allowed });
    expect(await more(lines()[1] ?? "")).toMatchObject({ code: 0, stdout: "" });
    const [part] = await partsOf(name);
    expect(part?.state.case).toBe("completed");
    expect(part?.state.case === "completed" && part.state.value.output).toContain("hi");
  });

  test("refuses with a reason what a rule denies", async () => {
    const { code, answer } = await send(lines()[2] ?? "").ran;
    expect(answer).toEqual(agent.denied(expect.stringContaining("exit *")));
    expect(code).toBe(0);
  });

  test("passes on the input that an approver edited, and the digest of what ran", async () => {
    const running = send(other("before", "edited", { command: "rm other" }));
    const input = { command: "echo edited" };
    await answerNext(service, PermissionReply.ONCE, { input });
    expect((await running.ran).answer).toEqual(agent.edited(input));
    await running.more(other("after", "edited", input));
    const part = (await partsOf(name)).find(({ originalInput }) => originalInput !== undefined);
    expect(part?.state.case).toBe("completed");
  });

  test("that ran something else than what was approved ends the call as changed", async () => {
    const { more, ran } = send(other("before", "changed", { command: "touch approved" }));
    await ran;
    await more(other("after", "changed", { command: "touch other" }));
    const ends = (await partsOf(name)).flatMap(({ state }) => (state.case === "error" ? state.value.reason : []));
    expect(ends).toContain(ToolErrorReason.CHANGED_AFTER_APPROVAL);
  });

  test.each([
    ["without a service", (line: string) => send(line, "http://127.0.0.1:9"), /no service answers/],
    ["without JSON", () => send("no json"), /is not JSON/],
    ["without a tool", (line: string) => send(line.replace(agent.tool, "")), /has no tool/],
  ])("%s refuses, and exits with the code that blocks", async (_fault, start, reason) => {
    const { code, answer, stderr } = await start(lines()[0] ?? "").ran;
    expect(answer).toEqual(agent.denied(expect.stringMatching(reason)));
    expect(stderr).toMatch(reason);
    expect(code).toBe(2);
  });
});

test("Gemini, which keeps fields that an approver removed, gets advice in place of such an edit", async () => {
  const { run, tokenFile } = createHookHome("host-token-for-tests");
  const flags = ["--server", service.url, "--token-file", tokenFile, "--uid", String(process.getuid?.())];
  const recorded = JSON.parse(recordedLines("gemini-0.61.0", service.workspace)[0] ?? "");
  const hook = { ...recorded, timestamp: "removed", tool_input: { command: "rm other", is_background: true } };
  const running = run(["gemini", ...flags], JSON.stringify(hook));
  await answerNext(service, PermissionReply.ONCE, { input: { command: "echo removed" } });
  const reason = expect.stringContaining('repeat it as {"command":"echo removed"}');
  expect((await running).answer).toMatchObject({ decision: "deny", reason });
});

test("a subagent of Codex asks as a task, and its tools belong to a child session with its name", async () => {
  const { run, tokenFile } = createHookHome("host-token-for-tests");
  const flags = ["--server", service.url, "--token-file", tokenFile, "--uid", String(process.getuid?.())];
  const [spawn = "", bash = ""] = recordedLines("codex-0.169.0", service.workspace).slice(-2);
  const spawning = run(["codex", ...flags], spawn);
  const { sessionId, permission, patterns } = await answerNext(service, PermissionReply.ONCE);
  expect(await spawning).toMatchObject({ code: 0, answer: {} });
  expect({ permission, patterns }).toEqual({ permission: "task", patterns: ["default"] });
  expect(await run(["codex", ...flags], bash)).toMatchObject({ code: 0, answer: {} });
  const { sessions } = await clientOf(SessionService, service.url, "admin-token-for-tests").listSessions({});
  const children = sessions.filter(({ parentSessionId }) => parentSessionId === sessionId);
  expect(children).toMatchObject([{ requester: { subagent: "default" } }]);
});

test.each([
  ["claude", () => recordedClaudeHook(service.workspace, "PreToolUse", "Bash").text],
  ["codex", () => recordedLines("codex-0.169.0", service.workspace)[0]],
])("a hook of %s that asks loads one file of 32 KiB at most, and no client for HTTP", async (kind, recorded) => {
  const { home, run, tokenFile } = createHookHome("host-token-for-tests");
  const flags = ["--server", service.url, "--token-file", tokenFile, "--uid", String(process.getuid?.())];
  const count = join(home, "count.cjs");
  const loaded = join(home, "loaded.json");
  const modules = "[Object.keys(require.cache).filter((file) => file !== __filename), process.moduleLoadList]";
  const write = `require("node:fs").writeFileSync(${JSON.stringify(loaded)}, JSON.stringify(${modules}))`;
  writeFileSync(count, `process.on("exit", () => ${write});\n`);
  const line = JSON.stringify({ ...JSON.parse(recorded() ?? ""), tool_use_id: "counted" });
  const { code } = await run([kind, ...flags], line, { NODE_OPTIONS: `--require ${count}` });
  expect(code).toBe(0);
  const [files, builtIn]: [string[], string[]] = JSON.parse(readFileSync(loaded, "utf8"));
  expect(files.map((file) => basename(file))).toEqual(["hook.cjs"]);
  expect(statSync(files[0] ?? "").size).toBeLessThanOrEqual(32_768);
  expect(
    builtIn.filter((name) => /^NativeModule (?:_?https?|http2|internal\/http2|internal\/deps\/undici)/.test(name)),
  ).toEqual([]);
});
