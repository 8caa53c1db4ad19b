import { execFileSync } from "node:child_process";
import { randomInt } from "node:crypto";
import { readFile } from "node:fs/promises";
import { createServer } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { Redis } from "ioredis";
import { expect, onTestFinished, test, vi } from "vitest";
import { PermissionReply, ToolEffects, ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { defineTool, serve, z } from "../../src/bodies/sdk/worker.ts";
import { isTerminal } from "../../src/call/state.ts";
import { storeFormat } from "../../src/store/redis/contents.ts";
import { schemaVersion } from "../../src/store/sqlite/schema.ts";
import { connect } from "../e2e/clients.ts";
import { hostOf, hostTokens, inputDigest } from "../e2e/host.ts";
import { ledger } from "../e2e/ledger.ts";
import { createService, type Service } from "../e2e/service.ts";
import { main } from "../main.ts";
import { startRedis } from "../store/redis-server.ts";
import { entryOf, releasesBefore, repository } from "./releases.ts";
import { isLong, report } from "./report.ts";

/** Another description of batch, so that its definition differs from that of this version in words alone. */
const otherWords = (text: string) => text.replace("Each is judged and asked for on its own.", "Each is judged.");

/**
 * Commits from before the first release, the releases, and this version with other words, with the format of what they write to Redis,
 * and whether a batch that began with them goes on.
 */
const commits = [
  ...(isLong ? [{ commit: "eb0142ce", format: 1 }] : []),
  { commit: "6343fc80", format: 1 },
  ...releasesBefore("HEAD")
    .slice(0, isLong ? 3 : 1)
    .map((commit) => ({ commit, format: storeFormat })),
  { commit: "HEAD", format: storeFormat, change: { "src/tools/batch.ts": otherWords } },
];
const ends = isLong ? (["kill", "stop"] as const) : (["kill"] as const);
const cases = commits.flatMap((old) =>
  (["sqlite", "redis"] as const).flatMap((store) => ends.map((end) => ({ ...old, store, end }))),
);

const settings = `${hostTokens}
[permission]
lsp = "ask"
roll = "ask"
[permission.bash]
"echo hosted" = "allow"
`;
const workerToken =
  '[[token]]\nid = "worker"\nroles = ["worker"]\ntools = ["roll"]\nvalue = "worker-token-for-tests"\n';

// One after the other: a concurrent test would end with the services of another one.
test.each(cases)(
  "the store of $commit on $store goes on after its $end: no call is lost, and the former version is refused or serves",
  async ({ commit, format, store, end, change }) => {
    const place = store === "redis" ? await startOwnRedis() : undefined;
    const files = gitOf("ls-tree", "-r", "--name-only", commit);
    const hasWorkers = files.includes("worker_service.proto");
    // A call of a tool that is gone ends after a minute.
    const hasServers = isLong && files.includes("src/tools/lsp-servers.ts");
    const listen = `127.0.0.1:${await freePort()}`;
    const top = `${place ? `store = "${place.url}"\n` : ""}lease_ms = 2000\n${hasWorkers ? workerToken : ""}${settings}`;
    const old = createService({ settings: top, flags: ["--listen", listen], entry: await entryOf(commit, change) });
    onTestFinished(old.close);
    await old.start();
    const held = await holdWork(old, { hasWorkers, hasServers });
    const isRefused = place ? format < storeFormat : schemaOf(commit) < schemaVersion;
    const checked = await checkUpgrade(old);
    expect(checked).toContain(
      isRefused ? `stop ${place ? "all replicas" : "the service"}, then start` : "both work on one store",
    );
    if (hasServers) expect(checked).toContain("waits for lsp_servers, which is gone");
    await (end === "kill" ? old.kill() : old.stop());

    const next = await startOn(old, listen);
    const found = await finish(held, next, { goesOn: change !== undefined });
    expect(found).toEqual([]);
    expect((await connect(next, "caller").tools.getServerInfo({})).format).toBe(place ? storeFormat : schemaVersion);
    await next.stop();

    const again = old.start();
    if (isRefused) {
      await expect(again).rejects.toThrow(place ? "WRONGTYPE" : /newer Toolgate|has format/);
      expect(await place?.formatOf()).toBe(place && String(storeFormat));
    } else await again;
    report({
      ...{ fault: `upgrade of ${commit} on ${store}, ${end}`, faults: 1, calls: held.calls.length, answers: 0 },
      ...{ runs: 0, violations: found.length, seen: isRefused ? "the way back is refused" : "the way back is open" },
    });
  },
);

test("a replica of the former format that runs keeps a new one from starting, which names it", async () => {
  const place = await startOwnRedis();
  const top = `store = "${place.url}"\n`;
  const old = createService({ settings: top, entry: await entryOf("6343fc80") });
  onTestFinished(old.close);
  await old.start();
  const next = createService({ settings: top });
  onTestFinished(next.close);
  await expect(next.start()).rejects.toThrow(
    /in use by replicas of an earlier Toolgate \(format 1\).*stop all of them/,
  );
  const { tools, newSession } = connect(old, "caller");
  const { part } = await tools.callTool({ sessionId: await newSession(), tool: "echo", input: { text: "on" } });
  expect(part?.state.case).toBe("completed");
});

/** Calls that are open when the old version ends. */
interface Held {
  calls: { sessionId: string; callId: string }[];
  /** Lines that each call writes when it runs. */
  runs: Map<string, () => Promise<number>>;
  /** Ends what runs outside of the service. */
  release(next: Service): Promise<void>;
}

/** Leaves open: a command that asks, a batch of such a one, calls at a worker that ask and run, one of a tool that is gone, a delegated call. */
async function holdWork(old: Service, { hasWorkers, hasServers }: Record<string, boolean>): Promise<Held> {
  const [agent, person] = [connect(old, "caller"), connect(old, "approver")];
  const sessionId = await agent.newSession();
  const runs: Held["runs"] = new Map();
  const command = (callId: string) => {
    const own = ledger(old);
    runs.set(callId, async () => (await own.lines()).length);
    return { command: own.append(callId) };
  };
  const tools = [{ tool: "bash", args: command("in-batch") }];
  await agent.tools.callTool({ sessionId, callId: "asks", tool: "bash", input: command("asks"), waitMs: 0 });
  await agent.tools.callTool({ sessionId, callId: "batch", tool: "batch", input: { tools }, waitMs: 0 });

  const entered = new Map<string, number>();
  let isReleased = false;
  const roll = defineTool({
    name: "roll",
    description: "Returns the text, once it may.",
    input: z.object({ text: z.string() }),
    permissions: [{ patterns: ["{text}"] }],
    async execute({ text }) {
      entered.set(text, (entered.get(text) ?? 0) + 1);
      while (text === "rolls" && !isReleased) await delay(50);
      return { output: text };
    },
  });
  const stop = new AbortController();
  onTestFinished(() => stop.abort());
  const token = "worker-token-for-tests";
  if (hasWorkers)
    void serve([roll], { url: old.url, token, worker: "roll", signal: stop.signal, log: () => undefined });
  const isOffered = async () => (await agent.tools.listTools({})).tools.some(({ name }) => name === "roll");
  const worked = hasWorkers ? ["roll-asks", "rolls"] : [];
  if (hasWorkers) await vi.waitUntil(isOffered, waiting);
  for (const callId of worked) {
    runs.set(callId, async () => entered.get(callId) ?? 0);
    await agent.tools.callTool({ sessionId, callId, tool: "roll", input: { text: callId }, waitMs: 0 });
  }
  const gone = hasServers ? ["gone"] : [];
  for (const callId of gone) {
    runs.set(callId, async () => 0);
    await agent.tools.callTool({ sessionId, callId, tool: "lsp_servers", input: {}, waitMs: 0 });
  }
  const asking = ["asks", "batch", ...worked, ...gone];
  let asked: { id: string; sessionId: string; tool?: { callId: string } | undefined }[] = [];
  const areAsked = async () => {
    asked = (await person.permissions.listPermissions({ sessionId })).permissions;
    return new Set(asked.map(({ tool }) => tool?.callId)).size === asking.length;
  };
  await vi.waitUntil(areAsked, waiting);
  for (const request of asked.filter(({ tool }) => tool?.callId === "rolls")) {
    await answer(old, request);
    await vi.waitUntil(() => entered.get("rolls") === 1, waiting);
  }

  const input = { command: "echo hosted" };
  const begun = await hostOf(old, "held").begun("Bash", input);
  const report = { assignment: begun.assignment, inputDigest: inputDigest(input), exit: 0 };
  const calls = asking.map((callId) => ({ sessionId, callId }));
  return {
    calls: [...calls, { sessionId: begun.sessionId, callId: begun.callId }],
    runs,
    async release(next) {
      isReleased = true;
      await hostOf(next, "held").tools.finishCall({ ...report, result: { case: "output", value: "hosted\n" } });
    },
  };
}

/** Approves what is asked until every held call has ended; lists those that were lost, hang or ran otherwise than they ended. */
async function finish({ calls, runs, release }: Held, next: Service, batch: { goesOn: boolean }): Promise<string[]> {
  await release(next);
  const { tools, permissions } = connect(next, "watcher");
  const partOf = async (call: { sessionId: string; callId: string }) => (await tools.getToolPart(call)).part;
  const open = async () => {
    const asked = await Promise.all(
      [...new Set(calls.map(({ sessionId }) => sessionId))].map((sessionId) =>
        permissions.listPermissions({ sessionId }),
      ),
    );
    for (const request of asked.flatMap((listed) => listed.permissions))
      await answer(next, request).catch(() => undefined);
    const parts = await Promise.all(calls.map(partOf));
    return parts.filter((part) => !part || !isTerminal(part));
  };
  let problem = "the calls did not end";
  const isOver = async () => {
    const left = await open().catch((error: unknown) => {
      problem = String(error);
      return undefined;
    });
    return left?.length === 0;
  };
  const found: string[] = [];
  await vi.waitUntil(isOver, waiting).catch(() => void found.push(problem));
  for (const call of calls) {
    const part = await partOf(call);
    const ran = await (runs.get(call.callId === "batch" ? "in-batch" : call.callId)?.() ?? 1);
    if (!isRight(part, ran, batch)) found.push(`${call.callId} is ${part?.state.case} and ran ${ran} times`);
  }
  return found;
}

/**
 * A call completes and ran once, or it ends with the reason why it did not run. A batch had begun, so it goes on; over a version that
 * changes its input it ends before its calls have, and says that they may have had effects if one ran.
 */
function isRight(part: ToolPart | undefined, ran: number, batch: { goesOn: boolean }): boolean {
  if (part?.state.case === "completed") return ran === 1;
  if (part?.state.case !== "error" || (part.tool === "batch" && batch.goesOn)) return false;
  const { effects, reason } = part.state.value;
  if (part.tool === "lsp_servers" && reason !== ToolErrorReason.STALE_TOOL) return false;
  return part.tool === "batch"
    ? ran === 0 || (ran === 1 && effects !== ToolEffects.NONE)
    : ran === 0 && effects === ToolEffects.NONE;
}

/** Returns what `upgrade --check` of this version says of a service. */
async function checkUpgrade({ config, data, url }: Service): Promise<string> {
  const flags = ["--config", config, "--data", data, "--token", "approver-token-for-tests"];
  return (await main(["upgrade", "--check", ...flags], { HOME: data, TOOLGATE_URL: url })).stdout;
}

async function answer(service: Service, { id: permissionId, sessionId }: { id: string; sessionId: string }) {
  const { permissions } = connect(service, "approver");
  await permissions.respondToPermission({ permissionId, sessionId, reply: PermissionReply.ONCE });
}

/** Starts this version on the files of another service, at its address. */
async function startOn(old: Service, listen: string): Promise<Service> {
  const flags = ["--listen", listen, "--data", old.data, "--workspace", old.workspace, "--config", old.config];
  const next = createService({ flags });
  onTestFinished(next.close);
  await next.start();
  return Object.create(next, { workspace: { value: old.workspace } });
}

async function startOwnRedis() {
  const server = await startRedis();
  const redis = new Redis(server.nodes[0] ?? {});
  onTestFinished(async () => {
    redis.disconnect();
    await server.stop();
  });
  return { url: server.url, formatOf: () => redis.hget("toolgate:{policy}:policy", "format") };
}

/** Finds a port that no outgoing connection gets, so that it is free again after each stop of the service. */
async function freePort(): Promise<number> {
  const [first = 0] = (await readFile("/proc/sys/net/ipv4/ip_local_port_range", "utf8")).split(/\s+/).map(Number);
  for (;;) {
    const port = first - 1 - randomInt(first / 2);
    const server = createServer();
    const isFree = await new Promise<boolean>((resolve) =>
      server.once("error", () => resolve(false)).listen(port, "127.0.0.1", () => resolve(true)),
    );
    await new Promise((resolve) => server.close(resolve));
    if (isFree) return port;
  }
}

function schemaOf(commit: string): number {
  return Number(/schemaVersion = (\d+)/.exec(gitOf("show", `${commit}:src/store/sqlite/schema.ts`))?.[1]);
}

const gitOf = (...args: string[]) => execFileSync("git", args, { cwd: repository, encoding: "utf8" });

const waiting = { timeout: 200_000, interval: 200 };
