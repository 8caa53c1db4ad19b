import type { AgentRun, AgentRunner, RunUpdate } from "../runner.ts";
import type { AcpHost } from "./acp-host.ts";
import { type AcpProgram, type AcpRuntime, acpTimes, type RunProgress } from "./acp-runtime.ts";
import { agentTraffic } from "./agent-stream.ts";

/** Runs of one program at the same time. */
const maxRuns = 8;

/** Creates the runner of a configured program. The SDK of the protocol is loaded by the first run. */
export function createAcpRunner(
  host: AcpHost,
  { agents, ...program }: AcpProgram & { agents: readonly string[] },
  limits: Partial<Pick<AcpRuntime, "times" | "traffic">> = {},
): AgentRunner {
  const runtime = { host, program, times: acpTimes, traffic: agentTraffic, conversations: new Map(), ...limits };
  let runCount = 0;
  return {
    name: `acp:${program.name}`,
    bypasses: bypassesOf(host, agents),
    agents: () => agents,
    serves: () => true,
    freeCapacity: () => maxRuns - runCount,
    async *start(run) {
      runCount += 1;
      try {
        yield* updatesOf(runtime, run);
      } finally {
        runCount -= 1;
      }
    },
  };
}

/** Runs the agent and yields its latest progress whenever the reader is ready for it, then its end. */
async function* updatesOf(runtime: AcpRuntime, run: AgentRun): AsyncGenerator<RunUpdate> {
  const { runAgent } = await import("./run-agent.ts");
  const left = new AbortController();
  let progress: RunProgress | undefined;
  let news = Promise.withResolvers<void>();
  let end: { update: RunUpdate | undefined } | undefined;
  const signal = AbortSignal.any([run.signal, left.signal]);
  const ended = runAgent(runtime, { ...run, signal }, (next) => {
    progress = { ...progress, ...next };
    news.resolve();
  }).then((update) => {
    end = { update };
    news.resolve();
  });
  try {
    while (end === undefined) {
      await news.promise;
      news = Promise.withResolvers();
      const latest: RunProgress | undefined = progress;
      progress = undefined;
      if (latest !== undefined && end === undefined) yield { type: "progress", ...latest };
    }
    if (end.update !== undefined) yield end.update;
  } finally {
    left.abort(new Error("no one reads the updates of this run any more"));
    await ended;
  }
}

/** Describes what its agents can do without asking here. */
function bypassesOf(host: AcpHost, agents: readonly string[]): string {
  const confinements = [...new Set(agents.map(host.confinement))].join("; ");
  return `Its own tools ask here only where the program asks its client for permission; what it runs without asking is neither judged nor recorded. It runs ${confinements}.`;
}
