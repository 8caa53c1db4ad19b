import { createHash } from "node:crypto";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ServiceImpl } from "@connectrpc/connect";
import { onTestFinished } from "vitest";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { SandboxState, ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { createLogger } from "../../src/core/logger.ts";
import { principalOf } from "../../src/edge/api/access.ts";
import { createListener, type Listener, type ListenerOptions } from "../../src/edge/http/listener.ts";

type Config = ListenerOptions["config"];

/** The tokens of a test server: one for each role. */
export const roles = ["caller", "approver", "watcher", "admin"] as const;

/** A real server on a free port, with these rpcs of ToolService; it is closed when the test ends. */
export async function startServer(
  tools: Partial<ServiceImpl<typeof ToolService>> = {},
  given: {
    config?: Partial<Config>;
    ready?: () => Promise<boolean>;
    agrees?: () => boolean;
    consoleDirectory?: string;
    headersMs?: number;
  } = {},
): Promise<Listener & { logFile: string }> {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-rpc-"));
  const logFile = join(folder, "toolgate.log");
  const listener = await createListener({
    config: { ...defaults, ...given.config },
    routes: (router) =>
      router
        .service(ToolService, { ...serverInfo, ...tools })
        .service(PermissionService, {})
        .service(SessionService, {}),
    ready: given.ready ?? (async () => true),
    agrees: given.agrees ?? (() => true),
    metrics: () => "metrics\n",
    consoleDirectory: given.consoleDirectory ?? folder,
    log: createLogger({ level: "info", file: logFile }),
    ...(given.headersMs === undefined ? {} : { headersMs: given.headersMs }),
  });
  onTestFinished(async () => {
    await listener.close(4_000);
    await rm(folder, { recursive: true });
  });
  return { ...listener, logFile };
}

const serverInfo: Partial<ServiceImpl<typeof ToolService>> = {
  getServerInfo(_request, context) {
    const { id, roles } = principalOf(context);
    return { version: "test", sandbox: SandboxState.OFF, principal: id, roles: [...roles] };
  },
};

const defaults: Config = {
  listen: { host: "127.0.0.1", port: 0 },
  tls: undefined,
  hosts: [],
  origins: [],
  insecureNoAuth: false,
  tokens: roles.map((role) => ({
    id: role,
    roles: [role],
    agents: ["*"],
    sha256: createHash("sha256").update(`${role}-token`).digest("hex"),
  })),
  limits: {
    requestBytes: 4_194_304,
    inputBytes: 524_288,
    outputBytes: 268_435_456,
    timeoutMs: 120_000,
    maxTimeoutMs: 3_600_000,
    openAsks: 100,
    runningCalls: 64,
  },
};
