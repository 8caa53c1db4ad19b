import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { existsSync, readFileSync } from "node:fs";
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { styleText } from "node:util";
import packageJson from "../package.json" with { type: "json" };
import { cli, type Served, type TrustFlags } from "./cli/cli.ts";
import { type Config, checkConfig, type Flags, findService, loadConfig, readEnvironment } from "./config/config.ts";
import { createLogger } from "./core/logger.ts";

const { version } = packageJson;
// Clients need nothing of the server, and loading it takes longer than most of them run.
const server = () => import("./compose/server.ts");
const parts = { serve, embed, trust, checkConfig: check, version };
await cli(parts).parseAsync();

/** Runs the service until it is told to stop; a second signal stops it at once. */
async function serve(flags: Flags, onStart: (served: Served) => void): Promise<void> {
  const config = loadConfig(flags, readEnvironment());
  const log = createLogger({ level: config.logLevel, file: join(config.dataDirectory, "log", "toolgate.log") });
  const { startServer } = await server();
  const started = await startServer(config, log);
  announce(config, started.url);
  onStart({ url: started.url, data: config.dataDirectory, version });
  const signal = await Promise.race([once(process, "SIGTERM"), once(process, "SIGINT")]);
  process.once("SIGTERM", () => process.exit(1)).once("SIGINT", () => process.exit(1));
  log.info("stopping", { reason: String(signal[0] ?? "signal") });
  await started.close();
}

/** Runs an engine for one command: a store and tokens of its own, gone with it. */
async function embed({ workspace, config: file }: { workspace?: string; config?: string }) {
  const data = await mkdtemp(join(tmpdir(), "toolgate-run-"));
  const caller = randomBytes(32).toString("base64url");
  const approver = randomBytes(32).toString("base64url");
  const flags: Flags = {
    ...(workspace !== undefined && { workspace }),
    ...(file !== undefined && { config: file }),
  };
  const { env, ...place } = readEnvironment();
  // What a person has trusted is trusted here, too.
  const service = findService(flags, { env, ...place });
  // A sandbox can hide only what is there; where it cannot be made, no tool can make it.
  await mkdir(service.serviceDirectory, { recursive: true, mode: 0o700 }).catch(() => {});
  const own = { ...env, TOOLGATE_STORE: "sqlite" };
  const config: Config = {
    ...loadConfig({ ...flags, listen: "127.0.0.1:0", data }, { env: own, ...place }),
    ...service,
    tls: undefined,
    tracing: false,
    drainMs: 2_000,
    tokens: [token("caller", caller), token("approver", approver)],
  };
  const { startServer } = await server();
  const started = await startServer(config, createLogger({ level: "error", file: join(data, "log", "toolgate.log") }));
  return {
    url: started.url,
    tokens: { caller, approver },
    async close() {
      await started.close();
      await rm(data, { recursive: true, force: true });
    },
  };
}

/** Checks a configuration file against the permissions that the built-in tools declare. */
async function check(file?: string) {
  const { declaredTools } = await import("./compose/built-in-tools.ts");
  return await checkConfig(file, readEnvironment(), await declaredTools());
}

/** Trusts the code of a workspace's tools as it is now, or no longer. */
async function trust(folder: string, { data, config: file, remove }: TrustFlags) {
  const flags: Flags = {
    workspace: folder,
    ...(data !== undefined && { data }),
    ...(file !== undefined && { config: file }),
  };
  const { trustDirectory, workspaces } = loadConfig(flags, readEnvironment());
  const { trustWorkspace } = await import("./tool/files/trust-workspace.ts");
  return await trustWorkspace(trustDirectory, workspaces.get("default") ?? folder, remove ?? false);
}

function token(role: "caller" | "approver", value: string): Config["tokens"][number] {
  return { id: role, roles: [role], agents: ["*"], sha256: createHash("sha256").update(value).digest("hex") };
}

/** Tells a person where it is, what it works on, and how to make the first call. */
function announce(config: Config, url: string): void {
  const { dataDirectory, workspaces, insecureNoAuth, unattended, tls } = config;
  const bold = (text: string) => styleText("bold", text);
  const caller = join(dataDirectory, "tokens", "caller");
  const token = existsSync(caller) ? `$(cat ${caller})` : "$TOKEN";
  const options = `${tls ? " --cacert CA.pem" : ""}${insecureNoAuth ? "" : ` -H "Authorization: Bearer ${token}"`}`;
  const lines = [
    `${bold("Toolgate")} ${version} is at ${bold(url)}`,
    ...[...workspaces].map(([name, directory]) => `  workspace  ${name} = ${directory}`),
    `  data       ${dataDirectory}`,
    consoleLine(config, url),
    ...(unattended === "deny" ? ["  unattended what would ask is denied"] : []),
    ...(insecureNoAuth
      ? [
          styleText(
            "red",
            "  No token is wanted (--insecure-no-auth): anyone on this machine, the agent included, can call and approve.",
          ),
        ]
      : []),
    "",
    "Try it:",
    `  curl -s ${url}/opencode.tool.v1.ToolService/CallTool${options} -H "Content-Type: application/json" -d '{"tool":"echo","input":{"text":"hello"}}'`,
    "",
  ];
  process.stderr.write(`${lines.join("\n")}\n`);
}

/** Where people decide. A link that signs in is for the person at this terminal; a log gets only the place of its token. */
function consoleLine({ dataDirectory, tokens }: Config, url: string): string {
  const file = join(dataDirectory, "tokens", "approver");
  const value = existsSync(file) ? readFileSync(file, "utf8").trim() : "";
  const counts = tokens.some(({ sha256 }) => sha256 === createHash("sha256").update(value).digest("hex"));
  if (!counts) return `  console    ${url}/`;
  return `  console    ${url}/${process.stderr.isTTY ? `#token=${value}` : `  (sign in with the token in ${file})`}`;
}
