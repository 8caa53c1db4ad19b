import { createHash } from "node:crypto";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { onTestFinished } from "vitest";
import type { AgentService } from "../../gen/opencode/tool/v1/agent_service_pb.ts";
import type { ChannelService } from "../../gen/opencode/tool/v1/channel_service_pb.ts";
import { SandboxState, type ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { readLimits } from "../../src/config/schema.ts";
import { createLogger } from "../../src/core/logger.ts";
import type { ServiceFunctions } from "../../src/edge/api/rpc.ts";
import type { Services } from "../../src/edge/api/services.ts";
import { type EdgeOptions, startEdge } from "../../src/edge/edge.ts";
import type { Listener } from "../../src/edge/http/listener.ts";
import { openCredentialFile } from "../../src/store/credential-file.ts";
import { credentialsOver } from "../people/credentials.ts";

type Config = EdgeOptions["config"];
type ToolFunctions = Partial<ServiceFunctions<typeof ToolService>>;

/** Tokens of a test server: one for each role. */
export const roles = ["caller", "approver", "watcher", "admin", "host", "relay"] as const;

/** Starts a real server on a free port with these rpcs of ToolService; all others are unimplemented. It closes after the test. */
export async function startServer(
  tools: ToolFunctions = {},
  given: {
    config?: Partial<Config>;
    ready?: () => Promise<boolean>;
    agrees?: () => boolean;
    consoleDirectory?: string;
    headersMs?: number;
    idleMs?: number;
    http2IdleMs?: number;
    agents?: Partial<ServiceFunctions<typeof AgentService>>;
    channels?: Partial<ServiceFunctions<typeof ChannelService>>;
  } = {},
): Promise<Listener & { logged(): Promise<string> }> {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-rpc-"));
  const logFile = join(directory, "toolgate.log");
  const log = createLogger({ level: "info", file: logFile });
  const config = { ...defaults, ...given.config };
  // Missing functions are served as unimplemented.
  const services = {
    tools: { ...serverInfo, ...tools },
    permissions: {},
    sessions: {},
    credentials: {},
    people: {},
    channels: given.channels ?? {},
    agents: given.agents ?? {},
    sources: {},
    operator: {},
    workers: {},
  } as Services;
  const listener = await startEdge({
    config,
    services: () => services,
    credentials: credentialsOver(
      openCredentialFile(join(directory, "credentials.json")),
      Date.now,
      () => config.tokens,
    ),
    signIns: {} as never,
    storeId: () => "sto_test",
    encoded: { bytesOf: () => undefined },
    ready: given.ready ?? (async () => true),
    safety: () => ({ copies: 0, expected: 0, required: 0, warnings: [] }),
    agrees: given.agrees ?? (() => true),
    metrics: () => "metrics\n",
    consoleDirectory: given.consoleDirectory ?? directory,
    log,
    ...(given.headersMs === undefined ? {} : { headersMs: given.headersMs }),
    ...(given.idleMs === undefined ? {} : { idleMs: given.idleMs }),
    ...(given.http2IdleMs === undefined ? {} : { http2IdleMs: given.http2IdleMs }),
  });
  onTestFinished(async () => {
    await listener.close(4_000);
    await rm(directory, { recursive: true });
  });
  return {
    ...listener,
    /** Returns the lines so far; the file appears with the first one. */
    async logged() {
      await log.flush();
      return readFile(logFile, "utf8").catch(() => "");
    },
  };
}

const serverInfo: ToolFunctions = {
  getServerInfo: (_request, { principal, roles }) => ({
    version: "test",
    sandbox: SandboxState.OFF,
    principal: principal.id,
    roles: [...roles],
  }),
};

const defaults: Config = {
  listen: { host: "127.0.0.1", port: 0 },
  tls: undefined,
  hosts: [],
  origins: [],
  trustedProxies: [],
  insecureNoAuth: false,
  tokens: roles.map((role) => ({
    id: role,
    roles: [role],
    agents: ["*"],
    workspaces: ["*"],
    sha256: createHash("sha256").update(`${role}-token`).digest("hex"),
  })),
  limits: { ...readLimits(), replicaRunning: 1_000 },
};
