import { execFileSync } from "node:child_process";
import { existsSync, renameSync, writeFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { openSandbox } from "../../src/sandbox/sandbox.ts";
import { callTool, judgeBy, openTestWorkspace, type RunOptions, type TestWorkspace } from "../../src/testing.ts";
import { createBash } from "../../src/tools/bash.ts";
import { createPipes } from "../../src/tools/process/run-command.ts";
import { createSupervisor } from "../../src/tools/process/supervisor.ts";

// Each test shows a limit of the sandbox that docs/security.md names: one that fails may be an improvement, which the page misses.

const supervisor = createSupervisor({ replicaId: `limits-shown-${process.pid}`, leaseMs: 15_000 });
const pipes = createPipes();
const wanted = { profile: "workspace-write", network: "proxy" } as const;
const sandbox = await openSandbox({ wanted, agents: new Map(), writable: [], hidden: [], pipes });
const bash = createBash({ supervisor, sandbox, pipes });
let site: TestWorkspace;
beforeAll(async () => {
  site = await openTestWorkspace({ "old.env": "OLD\n", "a.txt": "a\n" });
});
afterAll(async () => {
  await site.remove();
  await supervisor.close();
  await pipes.close();
  sandbox.close();
});

async function run(command: string, options?: RunOptions) {
  site.judge = judgeBy({ read: { "*.env": "deny" }, bash: { "*": "allow", "rm *": "deny" } });
  return (await callTool(site, bash, { command }, options)).written;
}

describe("not covered by the sandbox", () => {
  test("is content of git's objects, for a program that reads them by itself", async () => {
    const commit = "git init -q . && git add old.env && git -c user.name=a -c user.email=a@b commit -qm first";
    execFileSync("bash", ["-ec", commit], { cwd: site.directory });
    const program = `import glob, zlib
for path in glob.glob(".git/objects/??/*"): print(zlib.decompress(open(path, "rb").read()))`;
    expect(await run(`cat old.env; python3 -c '${program}'`)).toMatch(/Permission denied[\s\S]*OLD/);
  });

  test("are names of hidden files", async () => {
    expect(await run("ls")).toBe("a.txt\nold.env\n");
  });

  test("is what another program renames over a hidden file while a command runs; the next one does not see it", async () => {
    const onOutput = (text: string) => {
      if (text !== "started\n") return;
      writeFileSync(join(site.directory, "next"), "NEW\n");
      renameSync(join(site.directory, "next"), join(site.directory, "old.env"));
      writeFileSync(join(site.directory, "renamed"), "");
    };
    const line = "echo started; until [ -e renamed ]; do sleep 0.02; done; cat old.env";
    expect(await run(line, { onOutput })).toBe("started\nNEW\n");
    expect(await run("cat old.env")).toContain("Permission denied");
  });

  test("is a file that the command makes itself; the next one does not see it", async () => {
    expect(await run("echo MADE > made.env; cat made.env")).toBe("MADE\n");
    expect(await run("cat made.env")).toContain("Permission denied");
  });

  test("is what an allowed program removes, also where rules deny another program that does so", async () => {
    writeFileSync(join(site.directory, "gone"), "");
    const command = "unlink gone";
    await run(command);
    const judged = (line: string) => site.judge({ permission: "bash", patterns: [line], paths: [] }).action;
    expect([judged("rm gone"), judged(command)]).toEqual(["deny", "allow"]);
    expect(existsSync(join(site.directory, "gone"))).toBe(false);
  });

  test("is what a permitted host receives", async () => {
    const received: string[] = [];
    const server = createServer(async (request, response) => {
      for await (const chunk of request) received.push(String(chunk));
      response.end();
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.2", resolve));
    onTestFinished(() => void server.close());
    const url = `http://127.0.0.2:${(server.address() as AddressInfo).port}`;
    site.judge = judgeBy({ webfetch: { [`${url}/*`]: "allow" } });
    await callTool(site, bash, { command: `curl -sS --data-binary @a.txt ${url}/upload` });
    expect(received.join("")).toBe("a\n");
  });
});

test("each line of docs/security.md about what commands see names its test", async () => {
  const page = await readFile(join(import.meta.dirname, "../../docs/security.md"), "utf8");
  const [, section = ""] = /^## What commands see\n([\s\S]*?)^###/m.exec(page) ?? [];
  const lines = section.split(/^\* /m).slice(1);
  expect(lines.length).toBeGreaterThan(20);
  expect(lines.filter((line) => !/\]\(\.\.\/test\/\S+\.test\.ts\)/.test(line.split("\n\n", 1)[0] ?? ""))).toEqual([]);
});
