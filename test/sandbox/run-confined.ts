import { spawn } from "node:child_process";
import { once } from "node:events";
import { json, text } from "node:stream/consumers";
import { openSandbox } from "../../src/sandbox/sandbox.ts";
import type { ConfinedRun, EndedRun } from "./confined.ts";

// Runs the program that stdin describes in a sandbox of this process's user; prints its end as JSON.
const { argv, settings, workspace, allowed } = (await json(process.stdin)) as ConfinedRun;
const sandbox = await openSandbox({ wanted: settings, agents: new Map(), writable: [], hidden: [] });
if (sandbox.problem !== undefined) throw new Error(sandbox.problem);
const place = {
  ...{ agent: "build", cwd: workspace, workspace, directories: [] },
  network: {
    name: "session",
    judge: (url: string) =>
      ({ action: url.startsWith(allowed) ? "allow" : "deny", reason: "the test says so" }) as const,
    refused: () => {},
    used: () => {},
    unavailable(reason: string) {
      throw new Error(reason);
    },
  },
};
const confined = await sandbox.confine(argv, place);
const [program, ...args] = confined.argv;
const child = spawn(program, args, {
  cwd: workspace,
  stdio: ["ignore", "pipe", "pipe", ...confined.descriptors],
  env: { ...process.env, ...confined.env },
});
if (!child.stdout || !child.stderr) throw new Error("the program has no pipes");
const [printed, errors, [code, signal]] = await Promise.all([
  text(child.stdout),
  text(child.stderr),
  once(child, "close"),
]);
await confined.release();
sandbox.close();
console.log(JSON.stringify({ code, signal, printed, errors } satisfies EndedRun));
