import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, inject, test } from "vitest";
import { PermissionReply, type PermissionRequest, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { layWire, type Wire } from "../clients/wire.ts";
import { connect } from "../e2e/clients.ts";
import { createService } from "../e2e/service.ts";
import { aiSdks, installAiSdks } from "./ai/install-ai-sdks.ts";

const root = resolve(import.meta.dirname, "../..");
const wanted = join(import.meta.dirname, "ai");
const { folder } = inject("installed");
let wire: Wire | undefined;
const site = mkdtempSync(join(tmpdir(), "toolgate-ai-"));
const [page = ""] =
  /(?<=^```ts\n)[\s\S]*?(?=^```)/m.exec(readFileSync(join(root, "docs/clients/ai-sdk.md"), "utf8")) ?? [];

const service = createService({
  settings:
    '[permission]\nread = "allow"\nglob = "allow"\n[permission.bash]\n"*" = "ask"\n"echo *" = "allow"\n"rm *" = "deny"\n',
});

beforeAll(async () => {
  installAiSdks();
  place("7", join(root, "node_modules/ai"));
  place("6", join(aiSdks, "ai-6"));
  await service.start();
  wire = await layWire(service);
});
afterAll(async () => {
  await wire?.close();
  await service.close();
  rmSync(site, { recursive: true });
});

/** Makes the folder of a program with one version of the AI SDK, a copy of the installed package, which finds that version, and the programs. */
function place(version: string, sdk: string): void {
  const at = join(site, version);
  mkdirSync(join(at, "node_modules/@types"), { recursive: true });
  symlinkSync(sdk, join(at, "node_modules/ai"));
  cpSync(join(folder, "node_modules/toolgate"), join(at, "node_modules/toolgate"), { recursive: true });
  symlinkSync(join(root, "node_modules/@types/node"), join(at, "node_modules/@types/node"));
  for (const program of ["model.ts", "stream.ts", "approval.ts"]) cpSync(join(wanted, program), join(at, program));
  writeFileSync(join(at, "page.ts"), page);
  writeFileSync(join(at, "package.json"), '{ "type": "module" }');
}

/** Starts a program whose model calls a tool. */
function start(version: string, program: string, tool: string, input: object, env: Record<string, string> = {}) {
  const child = spawn(process.execPath, ["--import", "./model.ts", program], {
    cwd: join(site, version),
    env: {
      ...process.env,
      ...{
        TOOLGATE_URL: wire?.url,
        TOOLGATE_TOKEN: "caller-token-for-tests",
        TOOL: tool,
        INPUT: JSON.stringify(input),
      },
      ...env,
    },
  });
  const [out, err] = [collect(child, "stdout"), collect(child, "stderr")];
  return {
    child,
    async ended() {
      const [code] = await once(child, "close");
      return { code, lines: out().trim().split("\n"), err: err() };
    },
  };
}

function collect(child: ChildProcess, stream: "stdout" | "stderr"): () => string {
  let text = "";
  child[stream]?.setEncoding("utf8").on("data", (piece: string) => {
    text += piece;
  });
  return () => text;
}

/** Returns the open permission request, as soon as there is one. */
async function asked(): Promise<PermissionRequest> {
  const { permissions } = connect(service, "approver");
  for (;;) {
    const { permissions: open } = await permissions.listPermissions({});
    if (open[0]) return open[0];
    await delay(50);
  }
}

async function answer(
  { sessionId, id, digest }: PermissionRequest,
  reply: PermissionReply,
  message = "",
): Promise<void> {
  const { permissions } = connect(service, "approver");
  await permissions.respondToPermission({ sessionId, permissionId: id, expectedDigest: digest, reply, message });
}

test("a chat can show that a call will ask, or that a rule denies it", async () => {
  const contentOf = async (command: string) => {
    const { lines, err } = await start("7", "approval.ts", "bash", { command }).ended();
    expect(err).toBe("");
    return JSON.parse(lines.at(-1) ?? "");
  };
  expect(await contentOf("printf z")).toEqual(["tool-call", "tool-approval-request"]);
  expect(await contentOf("echo hello")).toEqual(["tool-call", "tool-result", expect.stringContaining("hello")]);
  expect((await contentOf("rm x")).at(-1)).toContain("a rule of the service denies it");
});

describe.each(["7", "6"])("with version %s of the AI SDK", (version) => {
  test("the types of the programs fit", async () => {
    const options = [
      "--noEmit",
      "--strict",
      "--target",
      "es2024",
      "--lib",
      "esnext",
      "--module",
      "nodenext",
      "--skipLibCheck",
      "--ignoreConfig",
    ];
    const types = ["--allowImportingTsExtensions", "--types", "node"];
    const compiler = join(root, "node_modules/typescript/bin/tsc");
    await promisify(execFile)(
      process.execPath,
      [compiler, ...options, ...types, "page.ts", "stream.ts", "model.ts", ...(version === "7" ? ["approval.ts"] : [])],
      {
        cwd: join(site, version),
      },
    );
  });

  test("the program of the page waits for a person across a restart of the service, and reads the result", async () => {
    const program = start(version, "page.ts", "bash", { command: "printf 'ran %s' once" });
    const ended = program.ended();
    await asked();
    await service.kill();
    wire?.cut();
    await service.start();
    await answer(await asked(), PermissionReply.ONCE);
    const { code, lines, err } = await ended;
    expect({ code, err }).toEqual({ code: 0, err: "" });
    expect(JSON.parse(lines.at(-1) ?? "")).toMatchObject([
      { type: "text", value: expect.stringContaining("ran once") },
    ]);
  });

  test("a tool's states are preliminary results, and its end is the last one", async () => {
    const { lines, err } = await start(version, "stream.ts", "bash", { command: "echo hello" }).ended();
    expect(err).toBe("");
    const results = lines.slice(0, -1).map((line) => JSON.parse(line));
    expect([...new Set(results.map(({ status }) => status))]).toEqual(["running", "completed"]);
    expect(results.map(({ preliminary }) => preliminary)).toEqual([...results.slice(1).map(() => true), false]);
    expect(results.at(-1)).toMatchObject({ output: "hello\n", callId: "call_1" });
  });

  test("a refusal is a result that the model reads", async () => {
    const program = start(version, "stream.ts", "bash", { command: "printf x" });
    const ended = program.ended();
    await answer(await asked(), PermissionReply.REJECT, "Not on Fridays.");
    const { lines } = await ended;
    expect(JSON.parse(lines.at(-2) ?? "")).toMatchObject({
      preliminary: false,
      status: "error",
      reason: "REJECTED",
      effects: "NONE",
    });
    expect(JSON.parse(lines.at(-1) ?? "")).toMatchObject([
      { type: "error-text", value: expect.stringContaining("Not on Fridays.") },
    ]);
  });

  test("an aborted step cancels its call", async () => {
    await start(version, "stream.ts", "bash", { command: "printf y" }, { ABORT: "waiting" }).ended();
    const { sessions } = await connect(service, "caller").sessions.listSessions({});
    const last = sessions[0]?.id ?? "";
    const { part } = await connect(service, "caller").tools.getToolPart({ sessionId: last, callId: "call_1" });
    expect(part?.state.value).toMatchObject({ reason: ToolErrorReason.CANCELLED });
  });

  test("an image reaches the model as a file", async () => {
    const png = Buffer.from(
      "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
      "base64",
    );
    writeFileSync(join(service.workspace, "dot.png"), png);
    const { lines, err } = await start(version, "page.ts", "read", { filePath: "dot.png" }).ended();
    expect(err).toBe("");
    expect(JSON.parse(lines.at(-1) ?? "")).toMatchObject([
      {
        type: "content",
        value: [{ type: "text" }, { type: "file-data", mediaType: "image/png", data: png.toString("base64") }],
      },
    ]);
  });
});
