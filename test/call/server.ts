import { createHash } from "node:crypto";
import { mkdir, mkdtemp, realpath, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createClient, type Interceptor } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { onTestFinished } from "vitest";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { startServer } from "../../src/compose/server.ts";
import type { openStore } from "../../src/compose/store.ts";
import { type Config, loadConfig } from "../../src/config/config.ts";
import type { LogFields, Logger } from "../../src/core/logger.ts";
import { byName } from "../../src/tool/registry.ts";
import type { DefinedTool } from "../../src/tool/tool.ts";

/** Starts a service in this process, with the tools of a test; it stops with the test. */
export async function serve(
  tools: DefinedTool[],
  {
    open,
    buildId = "test",
    toml = "",
    ...settings
  }: Partial<Pick<Config, "askMs" | "experimental" | "plainAlways" | "store">> & {
    /** The configuration file. */
    toml?: string;
    open?: typeof openStore;
    buildId?: string | undefined;
  } = {},
) {
  const folder = await realpath(await mkdtemp(join(tmpdir(), "toolgate-call-")));
  const workspace = join(folder, "workspace");
  await mkdir(workspace);
  const file = join(folder, "toolgate.toml");
  if (toml) await writeFile(file, toml);
  const config = {
    ...loadConfig(
      { ...(toml && { config: file }), listen: "127.0.0.1:0", data: join(folder, "data"), workspace },
      { env: { XDG_CONFIG_HOME: folder }, home: folder, directory: workspace },
    ),
    ...settings,
    drainMs: 1_000,
    tokens: Object.entries({ caller: "caller", stranger: "caller", approver: "approver" } as const).map(
      ([id, role]) => ({
        id,
        roles: [role],
        agents: ["*"],
        workspaces: ["*"],
        sha256: createHash("sha256").update(id).digest("hex"),
      }),
    ),
  };
  const logged: { message: string; fields: LogFields | undefined }[] = [];
  const write = (message: string, fields?: LogFields) => void logged.push({ message, fields });
  const log: Logger = { debug: write, info: write, warn: write, error: write };
  const start = async () => {
    const server = await startServer(config, log, {
      tools: byName(tools),
      ...(buildId && { buildId }),
      ...(open && { open }),
    });
    let closing: Promise<void> | undefined;
    const close = () => (closing ??= server.close());
    onTestFinished(close);
    const { register, addHooks, url } = server;
    const [agent, stranger] = [clients(url, "caller"), clients(url, "stranger")];
    return { url, register, addHooks, close, agent, stranger, person: clients(url, "approver") };
  };
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  return { workspace, logged, restart: start, ...(await start()) };
}

function clients(baseUrl: string, token: string) {
  const authorize: Interceptor = (next) => (request) => {
    request.header.set("authorization", `Bearer ${token}`);
    return next(request);
  };
  const transport = createGrpcTransport({ baseUrl, interceptors: [authorize] });
  return {
    tools: createClient(ToolService, transport),
    permissions: createClient(PermissionService, transport),
    sessions: createClient(SessionService, transport),
  };
}
