import { spawnSync } from "node:child_process";
import { renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { startLastingProgram } from "../../src/compose/lasting-program.ts";
import type { RuleConfig } from "../../src/policy/rules.ts";
import { watchCoverage } from "../../src/sandbox/confinement.ts";
import type { Covered } from "../../src/sandbox/layers.ts";
import { openSandbox } from "../../src/sandbox/sandbox.ts";
import { judgeBy, openTestWorkspace, type TestWorkspace } from "../../src/testing.ts";
import { createSupervisor } from "../../src/tools/process/supervisor.ts";

const wanted = { profile: "workspace-write", network: "none" } as const;
const sandbox = await openSandbox({ wanted, agents: new Map(), writable: [], hidden: [] });
let site: TestWorkspace;
beforeAll(async () => {
  site = await openTestWorkspace({ "a.env": "SECRET\n", "a.txt": "a\n", ".npmrc": "x\n" });
});
afterAll(async () => {
  await site.remove();
  sandbox.close();
});

const rulesOf = (config: RuleConfig) => judgeBy(config).fileRules();

test("what a process without a call does not reach is compared with the rules and files of later", async () => {
  let rules = rulesOf({ read: { "*.env": "deny" } });
  const confined = await sandbox.confine(["bash", "-c", "cat a.env a.txt; echo X >> .npmrc; cat .npmrc"], {
    ...{ agent: "build", cwd: site.directory, workspace: site.directory, directories: [] },
    files: { rules, read: [], edit: [] },
  });
  const [program, ...args] = confined.argv;
  const { stdout } = spawnSync(program, args, {
    ...{ cwd: site.directory, encoding: "utf8" },
    stdio: ["ignore", "pipe", "pipe", ...confined.descriptors],
  });
  expect(stdout).toBe("a\nx\n");

  const found: Covered[][] = [];
  const problems: unknown[] = [];
  const ended = new AbortController();
  const watching = watchCoverage(
    {
      ...{ confined, everyMs: 20 },
      rules: async () => rules,
      onUncovered: (paths) => void found.push([...paths]),
      onProblem: (error) => void problems.push(error),
    },
    ended.signal,
  );
  const names = () => found.map((paths) => paths.map(({ path }) => path.slice(site.directory.length + 1)));
  writeFileSync(join(site.directory, "b.env"), "SECRET\n");
  await vi.waitUntil(() => found.length === 1);
  rules = rulesOf({ read: { "*.env": "deny", "a.txt": "ask" }, edit: { "*.lock": "deny" } });
  await vi.waitUntil(() => found.length === 2);
  writeFileSync(join(site.directory, "x.lock"), "");
  await vi.waitUntil(() => found.length === 3);
  writeFileSync(join(site.directory, "new"), "SECRET\n");
  renameSync(join(site.directory, "new"), join(site.directory, "a.env"));
  await vi.waitUntil(() => found.length === 4);
  ended.abort();
  await watching;
  await confined.release();
  // Each is reported once, and nothing that was covered at the start and is still the same file.
  expect([names(), problems]).toEqual([[["b.env"], ["a.txt"], ["x.lock"], ["a.env"]], []]);
});

test("a program whose mounts are planned while the service stops is never started", async () => {
  const replicaId = `long-lived-${process.pid}`;
  const supervisor = createSupervisor({ replicaId, leaseMs: 15_000 });
  let released = 0;
  const stopping = {
    ...sandbox,
    async confine(...args: Parameters<typeof sandbox.confine>) {
      const confined = await sandbox.confine(...args);
      await supervisor.close();
      const release = async () => {
        released += 1;
        await confined.release();
      };
      return { ...confined, release };
    },
  };
  const program = { call: { sessionId: "mcp", callId: "slow" }, argv: ["sleep", "60"], env: {} } as const;
  const place = { agent: "", cwd: site.directory, workspace: site.directory, directories: [] };
  await expect(startLastingProgram({ sandbox: stopping, supervisor }, program, place)).rejects.toThrow("is stopping");
  expect(released).toBe(1);
});
