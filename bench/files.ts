import { globSync, readFileSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { Session } from "node:inspector/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { createLogger, loadConfig, readEnvironment, startServer } from "../src/index.ts";
import { table } from "./report.ts";

const principals = ["caller", "approver"] as const;
const tokenOf = (principal: string) => `${principal}-token-for-the-bench`;
const entries = principals.map(
  (name) => `[[token]]\nid = "${name}"\nroles = ["${name}"]\nvalue = "${tokenOf(name)}"\n`,
);
const settings = `[permission]\ndoom_loop = "allow"\n${entries.join("")}`;
const src = new URL("../src/", import.meta.url).href;
const warmUp = 5;
const idleMs = 3_000;

/** Functions of src that ran, by file and name, with the number of their calls. */
type Ran = ReadonlyMap<string, number>;

/**
 * Counts the files of src, and the functions in them, that one request runs through at a service that has answered such requests
 * before, by V8's coverage of this process. Functions that also run while nothing is asked do not count, nor does what threads do.
 * Prints the size of src, too.
 */
export async function measureFiles(folder: string, print: (text: string) => void): Promise<void> {
  const [workspace, config] = [join(folder, "files"), join(folder, "files.toml")];
  const paths = globSync("**/*.{ts,tsx,lua}", { cwd: new URL(src) });
  const lines = paths.map((path) => readFileSync(new URL(path, src), "utf8").split("\n").length - 1);
  const sum = lines.reduce((all, of) => all + of, 0);
  print(`src has ${sum.toLocaleString("en")} lines of TypeScript and Lua in ${paths.length} files.`);
  await mkdir(workspace, { recursive: true });
  await Promise.all([writeFile(join(workspace, "a.txt"), "text\n"), writeFile(config, settings)]);
  const flags = { config, workspace, data: join(folder, "files-data"), listen: "127.0.0.1:0" };
  const server = await startServer(
    loadConfig(flags, { ...readEnvironment(), env: { PATH: process.env.PATH } }),
    createLogger({ level: "error", file: join(folder, "files.log") }),
  );
  const coverage = await startCoverage();
  const read = () => send(server.url, "ToolService/CallTool", { tool: "read", input: { filePath: "a.txt" } });
  try {
    const reads: Ran[] = [];
    const answers: Ran[] = [];
    for (let i = 0; i < warmUp; i += 1) {
      await coverage.take();
      await read();
      await sleep(settleMs);
      reads.push(await coverage.take());
      const answer = await ask(server.url);
      await coverage.take();
      await answer();
      await sleep(settleMs);
      answers.push(await coverage.take());
    }
    await sleep(idleMs);
    const idle = await coverage.take();
    print(
      table(
        ["request", "files of src", "functions", "calls"],
        [
          ["`read` of a small file, allowed", ...countsOf(reads.at(-1), idle)],
          ["`bash`, from *once* to recorded", ...countsOf(answers.at(-1), idle)],
        ],
      ),
    );
  } finally {
    coverage.stop();
    await server.close();
  }
}

const settleMs = 100;

async function startCoverage() {
  const session = new Session();
  session.connect();
  await session.post("Profiler.enable");
  await session.post("Profiler.startPreciseCoverage", { callCount: true, detailed: false });
  return {
    /** Returns what ran since the last time. */
    async take(): Promise<Ran> {
      const { result } = await session.post("Profiler.takePreciseCoverage");
      const ran = new Map<string, number>();
      for (const { url, functions } of result) {
        if (!url.startsWith(src)) continue;
        for (const { functionName, ranges } of functions) {
          const [{ startOffset, count } = { startOffset: 0, count: 0 }] = ranges;
          if (count > 0) ran.set(`${url.slice(src.length)} ${functionName} ${startOffset}`, count);
        }
      }
      return ran;
    },
    stop: () => session.disconnect(),
  };
}

/** Calls bash so that it asks once; returns the function that answers, and waits for the end of the call. */
async function ask(url: string): Promise<() => Promise<void>> {
  const { session } = await send(url, "SessionService/CreateSession", {});
  const sessionId = session.id;
  const ended = send(url, "ToolService/CallTool", { sessionId, tool: "bash", input: { command: "sleep 0" } });
  for (;;) {
    const { permissions = [] } = await send(url, "PermissionService/ListPermissions", { sessionId }, "approver");
    const [request] = permissions;
    if (request !== undefined)
      return async () => {
        const reply = { sessionId, permissionId: request.id, reply: "PERMISSION_REPLY_ONCE" };
        await send(url, "PermissionService/RespondToPermission", reply, "approver");
        const { part } = await ended;
        if (part.completed === undefined) throw new Error(`the call did not complete: ${JSON.stringify(part)}`);
      };
    await sleep(20);
  }
}

/** The fields of all answers that are read. */
interface Answer {
  readonly session: { readonly id: string };
  readonly permissions?: readonly { readonly id: string }[];
  readonly part: { readonly completed?: object };
}

async function send(url: string, rpc: string, request: object, principal: (typeof principals)[number] = "caller") {
  const response = await fetch(`${url}/opencode.tool.v1.${rpc}`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${tokenOf(principal)}` },
    body: JSON.stringify(request),
  });
  const body = (await response.json()) as Answer;
  if (!response.ok) throw new Error(`${rpc}: ${JSON.stringify(body)}`);
  return body;
}

function countsOf(ran: Ran = new Map(), idle: Ran): string[] {
  const own = [...ran].filter(([name]) => !idle.has(name));
  const files = new Set(own.map(([name]) => name.split(" ", 1)[0]));
  return [files.size, own.length, own.reduce((sum, [, count]) => sum + count, 0)].map((count) =>
    count.toLocaleString("en"),
  );
}
