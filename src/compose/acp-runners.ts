import type { AcpHost } from "../agents/runners/acp/acp-host.ts";
import { createAcpRunner } from "../agents/runners/acp/acp-runner.ts";
import { AgentFailure } from "../agents/runners/acp/agent-failure.ts";
import type { RunnerRegistry } from "../agents/runners/runner-registry.ts";
import type { Calls } from "../call/calls.ts";
import type { Config } from "../config/config.ts";
import type { Logger } from "../core/logger.ts";
import type { RunTokens } from "../people/run-tokens.ts";
import type { PlaceNetwork } from "../sandbox/network/session-networks.ts";
import { TooManyMounts } from "../sandbox/plan-files.ts";
import type { Sandbox } from "../sandbox/sandbox.ts";
import type { Judge } from "../tool/tool.ts";
import type { Supervisor } from "../tools/process/supervisor.ts";
import { startLastingProgram } from "./lasting-program.ts";

/** The parts of a replica that run agents' programs. */
interface AcpParts {
  calls: Pick<Calls, "ownTools">;
  runTokens: Pick<RunTokens, "issue">;
  /** Returns the function that evaluates the configured rules for an agent. */
  judgeFor(agent: string): Judge;
  sandbox: Sandbox;
  supervisor: Supervisor;
  /** Address of this replica. */
  url: string;
  log: Logger;
}

/** Adds the runners that the configuration names. */
export function addAcpRunners(
  { agentRunners }: Pick<Config, "agentRunners">,
  runners: Pick<RunnerRegistry, "add">,
  parts: AcpParts,
): void {
  const host = createAcpHost(parts);
  for (const runner of agentRunners) runners.add(createAcpRunner(host, runner));
}

/** Creates what runners need of the service: processes in the sandbox of their agent, tokens, and delegated calls. */
function createAcpHost({ calls, judgeFor, runTokens, sandbox, supervisor, url, log }: AcpParts): AcpHost {
  const { ownTools } = calls;
  const mcp = `${url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")}/mcp`;
  const { hostname, port } = new URL(mcp);
  const forwards = isLoopback(hostname) ? [{ host: hostname.replace(/^\[|\]$/g, ""), port: Number(port) }] : [];

  /** The network of a program that outlives single calls: no person is asked, and it reaches this service. */
  function networkOf(agent: string, name: string): PlaceNetwork {
    const judge = judgeFor(agent);
    return {
      name,
      forwards,
      judge: (url, leadsTo) =>
        judge({ permission: "webfetch", patterns: [url], ...(leadsTo !== undefined && { leadsTo }) }),
      refused: (_, reason) => log.warn("the network refused a request of an agent's program", { agent, reason }),
      used: () => {},
      unavailable: (reason) => log.warn("an agent's program has no network", { agent, reason }),
    };
  }

  return {
    confinement(agent) {
      const { profile, network } = sandbox.confinement(agent);
      if (profile === "off") return "without a sandbox";
      return `in the sandbox profile ${profile}, ${networkWords[network]}`;
    },
    async start({ argv, cwd, env }, run, onStale) {
      const { agent, childSession: sessionId, cwd: workspace } = run;
      const { callId } = run.parentCall;
      const call = { sessionId, callId };
      const place = { agent, cwd, workspace, directories: [], session: sessionId };
      const files = {
        rules: () => ownTools.fileRulesOf(run, agent),
        onStale(problem: string) {
          log.warn("rules or files changed while an agent's program runs", { agent, reason: problem });
          onStale(`${problem} Cancel the task and start it again.`);
        },
        onProblem: (error: unknown) => log.warn("it is unknown what an agent's program reaches", { agent, error }),
      };
      const program = startLastingProgram(
        { sandbox, supervisor },
        { call, argv, env, files },
        { ...place, network: networkOf(agent, `${sessionId}/${callId}`) },
      );
      return await program.catch((cause: unknown) => {
        if (!(cause instanceof TooManyMounts)) throw cause;
        throw new AgentFailure(
          `it was not started, since ${cause.message}; the operator raises masks_max, or lets rules name whole directories`,
          { cause },
        );
      });
    },
    async openTools(run) {
      const caller = await ownTools.principalOf(run);
      const { token, revoke } = runTokens.issue({ ...caller, agents: [run.agent], session: run.childSession });
      return { url: `${mcp}/${run.childSession}`, token, close: revoke };
    },
    async begin(run, use, signal) {
      const outcome = await ownTools.begin(run, { kind: "acp", ...use }, signal);
      if (outcome.case === "refused") return outcome;
      const { assignment, part } = outcome;
      const { state } = part;
      return { case: "begun", assignment, input: state.value?.input ?? {} };
    },
    finish: ownTools.finish,
    cancel: ownTools.cancel,
    log: (message, { error, ...args }) => log.warn(message, { error, args }),
  };
}

const networkWords = {
  proxy: "with access to the hosts that the rules for webfetch allow",
  none: "without network access",
  open: "with network access",
};

const isLoopback = (hostname: string) => hostname === "[::1]" || hostname.startsWith("127.");
