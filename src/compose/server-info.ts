import { create } from "@bufbuild/protobuf";
import {
  LimitsSchema,
  NetworkAccess,
  PresetSchema,
  SandboxDetailsSchema,
  SandboxState,
} from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import packageJson from "../../package.json" with { type: "json" };
import type { Config } from "../config/config.ts";
import type { Sandbox } from "../sandbox/sandbox.ts";

/** The version of this package. */
export const { version } = packageJson;

/** Collects what GetServerInfo reports about this replica. */
export function serverInfo(config: Config, sandbox: Sandbox, warnings: readonly string[]) {
  const { workspaces, unattended, askMs, limits, mcpHolds, publicUrl = "" } = config;
  return {
    version,
    workspaces: [...workspaces.keys()],
    sandbox: () => ({ ...describeSandbox(sandbox, warnings), ...describePreset(config, sandbox) }),
    agentsOf: (principal: { agents: readonly string[] }) =>
      agentNames(config, principal).map((agent) => ({
        agent,
        description: config.policy.agents.get(agent)?.description ?? "",
      })),
    unattended,
    mcpHolds,
    publicUrl,
    limits: create(LimitsSchema, {
      requestBytes: BigInt(limits.requestBytes),
      inputBytes: BigInt(limits.inputBytes),
      outputBytes: BigInt(limits.outputBytes),
      timeoutMs: BigInt(limits.maxTimeoutMs),
      askMs: BigInt(askMs),
      openAsks: limits.openAsks,
      runningCalls: limits.runningCalls,
      reportMs: BigInt(limits.reportMs),
      collectMs: BigInt(limits.collectMs),
    }),
  };
}

/** Lists the agents as which a principal may act: in the order of its token, or all in the order of the configuration. */
function agentNames({ policy }: Config, { agents }: { agents: readonly string[] }): string[] {
  const configured = [...policy.agents.keys()];
  return agents.includes("*") ? configured : agents.filter((agent) => configured.includes(agent));
}

const networkAccess = { proxy: NetworkAccess.PROXY, none: NetworkAccess.NONE, open: NetworkAccess.OPEN };

/** Describes the sandbox as it is now: that sessions have no network shows at the first command. */
function describeSandbox(sandbox: Sandbox, warnings: readonly string[]) {
  const withoutNetwork = sandbox.networkProblem();
  const network = withoutNetwork === undefined ? sandbox.state.network : "none";
  return {
    sandbox: sandboxState(sandbox),
    sandboxNetwork: network !== "none",
    sandboxNetworkAccess: networkAccess[network],
    sandboxProblem: sandbox.problem ?? "",
    sandboxDetails: create(SandboxDetailsSchema, {
      layers: sandbox.layers(),
      warnings: [
        ...warnings,
        ...(withoutNetwork === undefined
          ? []
          : [`commands have no network, since none can be opened: ${withoutNetwork}`]),
      ],
    }),
  };
}

/** Describes the preset as it is now, since a reload may change it. */
function describePreset({ policy: { preset } }: Config, sandbox: Sandbox) {
  if (!preset) return {};
  const { problem } = sandbox.wall("");
  const { name, registries } = preset;
  return {
    preset: create(PresetSchema, {
      name,
      registries: [...registries],
      problem: problem === undefined ? "" : `a command ${problem}`,
    }),
  };
}

function sandboxState({ state, problem }: Sandbox): SandboxState {
  if (problem !== undefined) return SandboxState.UNAVAILABLE;
  if (state.profile === "off") return SandboxState.OFF;
  return state.profile === "read-only" ? SandboxState.READ_ONLY : SandboxState.WORKSPACE_WRITE;
}
