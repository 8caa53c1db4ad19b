/**
 * A process for tests that lacks descriptors: opens files until as many are free as its second argument says, then does what the first
 * one names. Prints what came of it, and how many descriptors are free afterwards.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, openSync } from "node:fs";
import { createGitHistory } from "../../src/sandbox/git-history.ts";
import { createUsageWatch } from "../../src/sandbox/usage-watch.ts";
import { createPipes } from "../../src/tools/process/run-command.ts";
import { createSupervisor } from "../../src/tools/process/supervisor.ts";

const [does = "", left = "0"] = process.argv.slice(2);

/** Opens all files that can be opened; returns how to close them. */
function exhaust(): number[] {
  const opened: number[] = [];
  try {
    for (;;) opened.push(openSync("/dev/null", "r"));
  } catch {
    return opened;
  }
}

const close = (descriptors: readonly number[]) => descriptors.forEach((each) => void closeSync(each));

function free(): number {
  const opened = exhaust();
  close(opened);
  return opened.length;
}

const report = (outcome: unknown) => console.log(JSON.stringify({ outcome, free: free() }));
const outcomeOf = (work: Promise<unknown>) => work.then(() => "done", String);

const pipes = createPipes();
if (does === "pipes") {
  close(exhaust().slice(0, Number(left)));
  report(await outcomeOf(pipes.open()));
} else if (does === "spawn") {
  const { writer } = await pipes.open();
  close(exhaust().slice(0, Number(left)));
  const program = { program: "/bin/true", args: [], cwd: "/", env: {}, descriptors: [writer, writer] };
  report(await outcomeOf(pipes.spawn(program)));
} else if (does === "kill") {
  const supervisor = createSupervisor({ replicaId: `few-descriptors-${process.pid}`, leaseMs: 15_000 });
  const call = { sessionId: "ses_few", callId: "c1" };
  const marks = await supervisor.watch(call);
  const command = spawn("/bin/sh", ["-c", "trap '' TERM; echo ready; while :; do sleep 1; done"], {
    ...{ detached: true, stdio: ["ignore", "pipe", "ignore"], env: { PATH: "/bin:/usr/bin", ...marks } },
  });
  await once(command.stdout ?? command, "data");
  const exited = once(command, "exit");
  close(exhaust().slice(0, Number(left)));
  await supervisor.kill(call, command.pid ?? 0);
  report((await exited)[1]);
} else if (does === "watch") {
  const limits = { maxMemoryBytes: 2 ** 40, maxProcesses: 10_000, directories: [], inMemory: [] };
  const { promise, resolve } = Promise.withResolvers<string>();
  createUsageWatch().watch(process.pid, limits, resolve);
  close(exhaust().slice(0, Number(left)));
  report(await promise);
} else if (does === "git") {
  let taken: number[] = [];
  const history = createGitHistory({
    sandbox: {
      async confine() {
        taken = exhaust();
        close(taken.splice(0, Number(left)));
        return { argv: ["/bin/true"], env: {}, descriptors: [], release: async () => undefined } as never;
      },
    },
    env: () => ({}),
  });
  const { problem } = await history.namesOf(process.argv[4] ?? "");
  close(taken);
  report(problem("history"));
}
process.exit(0);
