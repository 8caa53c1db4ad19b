/** Opens permission requests in this process, and prints the CPU time of a round of renewals and recovery as JSON. */
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { readLimits } from "../../src/config/schema.ts";
import type { Principal } from "../../src/core/principal.ts";
import { median } from "../report.ts";
import { createAskingFile } from "../scale/asking-file.ts";

const [root = "", ...counts] = process.argv.slice(2);
const [asks = 0, rounds = 0] = counts.map(Number);

/** Loads a module of the version that is measured. */
const load = (path: string) => import(join(root, path));
const { openCrashMarks }: typeof import("../../src/call/crash-marks.ts") = await load("src/call/crash-marks.ts").catch(
  () => ({ openCrashMarks: () => undefined }),
);
const { createReplica }: typeof import("../../src/compose/replica.ts") = await load("src/compose/replica.ts");
const { openSqliteStore }: typeof import("../../src/store/sqlite/store.ts") = await load("src/store/sqlite/store.ts");
const { readTool }: typeof import("../../src/tools/read.ts") = await load("src/tools/read.ts");

const folder = mkdtempSync(join(tmpdir(), "toolgate-recovery-"));
const workspace = join(folder, "workspace");
mkdirSync(workspace);
const filePath = await createAskingFile(workspace);
const silent = { debug() {}, info() {}, warn() {}, error: (message: string) => process.stderr.write(`${message}\n`) };
const store = await openSqliteStore({ directory: join(folder, "data"), log: silent });
const { calls, sessions } = createReplica({
  config: {
    askMs: 900_000,
    dataDirectory: join(folder, "data"),
    file: join(folder, "toolgate.toml"),
    leaseMs: 600_000,
    limits: {
      ...readLimits(),
      requestBytes: 4_194_304,
      inputBytes: 524_288,
      outputBytes: 268_435_456,
      timeoutMs: 120_000,
      maxTimeoutMs: 3_600_000,
      openAsks: 100,
      runningCalls: 64,
      replicaRunning: 16,
      reportMs: 600_000,
      collectMs: 600_000,
    },
    unattended: "wait",
    workspaces: new Map([["default", workspace]]),
  },
  rules: { config: [], agents: new Map() },
  store,
  replicaId: "bench",
  tools: [readTool],
  crashMarks: openCrashMarks(join(folder, "entered"), "bench"),
  observer: {
    began: () => ({ step: (_, work) => work(undefined), over() {} }),
    ended() {},
    waited() {},
    differed() {},
  },
  log: silent,
});
const principal: Principal = {
  id: "bench",
  roles: new Set(["caller"]),
  agents: ["*"],
  workspaces: ["*"],
  lineage: ["bench"],
  answersOwn: false,
};

let sessionId = "";
for (let index = 0; index < asks; index += 1) {
  if (index % 50 === 0) {
    const session = await sessions.create(principal, {
      ...{ sessionId: "", workspace: "default", agent: "build", rules: [], parentSessionId: "", title: "" },
      ...{ directory: "", expectedStoreId: "", $typeName: "opencode.tool.v1.CreateSessionRequest" },
    });
    sessionId = session.id;
  }
  const request = create(CallToolRequestSchema, {
    ...{ sessionId, callId: `c${index}`, tool: "read" },
    // Differs from call to call: repeats ask once more.
    input: { filePath, limit: index + 1 },
  });
  await calls.open(principal, request);
}
const countOpen = async () => (await store.permissions.countOpenAsks()).count;
const until = performance.now() + 60_000;
while ((await countOpen()) < asks) {
  if (performance.now() > until)
    throw new Error(`only ${await countOpen()} of ${asks} permission requests were opened`);
  await new Promise((resolve) => setTimeout(resolve, 20));
}

const taken: number[] = [];
for (let round = -2; round < rounds; round += 1) {
  const before = process.cpuUsage();
  await calls.recover();
  await calls.renew();
  await calls.stopLapsed();
  const { user, system } = process.cpuUsage(before);
  if (round >= 0) taken.push((user + system) / 1_000);
}
if ((await countOpen()) !== asks) throw new Error("recovery has ended permission requests");
process.stdout.write(`${JSON.stringify({ ms: median(taken) })}\n`);
rmSync(folder, { recursive: true, force: true });
process.exit(0);
