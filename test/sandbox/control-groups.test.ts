import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { openControlGroups } from "../../src/sandbox/control-groups.ts";
import { openSandbox } from "../../src/sandbox/sandbox.ts";
import { callTool, judgeBy, openTestWorkspace, type TestWorkspace } from "../../src/testing.ts";
import { createBash } from "../../src/tools/bash.ts";
import { createPipes } from "../../src/tools/process/run-command.ts";
import { createSupervisor } from "../../src/tools/process/supervisor.ts";

const supervisor = createSupervisor({ replicaId: `groups-test-${process.pid}`, leaseMs: 15_000 });
const pipes = createPipes();
let site: TestWorkspace;
beforeAll(async () => {
  site = await openTestWorkspace();
  site.judge = judgeBy({});
});
afterAll(async () => {
  await site.remove();
  await supervisor.close();
  await pipes.close();
});

/** Makes the files of a group as the kernel shows them, in a directory: what is written there has no effect. */
function makeGroup({ controllers = "cpu memory pids", processes = [process.pid], list = "0::/unit\n" } = {}) {
  const mount = mkdtempSync(join(tmpdir(), "toolgate-groups-"));
  onTestFinished(() => rmSync(mount, { recursive: true }));
  const own = join(mount, "unit");
  mkdirSync(own);
  writeFileSync(join(own, "cgroup.controllers"), `${controllers}\n`);
  writeFileSync(join(own, "cgroup.procs"), processes.map((pid) => `${pid}\n`).join(""));
  writeFileSync(join(mount, "list"), list);
  return { own, place: { mount, list: join(mount, "list") } };
}

test("the service moves into a group below its own, and enables the limits", () => {
  const { own, place } = makeGroup();
  expect(openControlGroups(place)).toBeDefined();
  expect(readFileSync(join(own, "service/cgroup.procs"), "utf8")).toBe(`${process.pid}\n`);
  expect(readFileSync(join(own, "cgroup.subtree_control"), "utf8")).toBe("+memory +pids");
});

test.each([
  ["the kernel has only version 1", { list: "4:memory:/unit\n8:pids:/\n" }],
  ["the service is in the root group", { list: "0::/\n" }],
  ["a controller is missing", { controllers: "cpu memory" }],
  ["other processes are in its group", { processes: [process.pid, 1] }],
])("there are none, and nothing is written, where %s", (_, made) => {
  const { own, place } = makeGroup(made);
  expect(openControlGroups(place)).toBeUndefined();
  expect(readdirSync(own).sort()).toEqual(["cgroup.controllers", "cgroup.procs"]);
});

test("a command is put into a group with its limits before it starts, and what the kernel ended is reported", async () => {
  const { own, place } = makeGroup();
  const maxMemoryBytes = 300 * 1024 ** 2;
  const wanted = { profile: "workspace-write", network: "none" } as const;
  const settings = { wanted, agents: new Map(), writable: [], hidden: [], maxMemoryBytes, pipes };
  const sandbox = await openSandbox({ ...settings, groups: openControlGroups(place) });
  onTestFinished(sandbox.close);
  expect(sandbox.layers()).toContain("cgroup");
  const bash = createBash({ supervisor, sandbox, pipes });
  const run = async (number: number, whileRunning: (group: string) => void) => {
    rmSync(join(site.directory, "go"), { force: true });
    const command = "echo started; until [ -e go ]; do sleep 0.05; done";
    const onOutput = () => {
      whileRunning(join(own, `command-${number}`));
      writeFileSync(join(site.directory, "go"), "");
    };
    return await callTool(site, bash, { command }, { onOutput });
  };

  const moved: string[] = [];
  const { note, metadata } = await run(1, (group) => {
    for (const pid of readFileSync(join(group, "cgroup.procs"), "utf8").trim().split("\n"))
      moved.push(readFileSync(`/proc/${pid}/comm`, "utf8").trim());
    expect(readFileSync(join(group, "pids.max"), "utf8")).toBe("1024");
    expect(readFileSync(join(group, "memory.max"), "utf8")).toBe(String(maxMemoryBytes));
    writeFileSync(join(group, "memory.events"), "low 0\noom 1\noom_kill 2\n");
  });
  expect(moved).toEqual(["bwrap", "bash"]);
  expect(note).toContain("command was killed, since its processes took more than 300 MiB of memory");
  expect(metadata?.sandbox).toMatchObject({ layers: expect.arrayContaining(["limits", "cgroup"]) });

  // The kernel removes the files of a group with it.
  const second = await run(2, (group) => {
    for (const file of readdirSync(group)) rmSync(join(group, file));
  });
  expect(second.note).toBeUndefined();
  expect(readdirSync(own)).not.toContain("command-2");
});
