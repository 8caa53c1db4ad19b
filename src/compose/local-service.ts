import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { closeSync, readdirSync, readFileSync, readlinkSync, realpathSync } from "node:fs";
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { checkConfig, checkPluginFiles } from "../config/check-config.ts";
import {
  type Config,
  checkDataExists,
  type Flags,
  findService,
  findStore,
  loadConfig,
  loadConfigForCheck,
  readEnvironment,
  searchWarnings,
  tokenWarnings,
  userSkillDirectories,
} from "../config/config.ts";
import { candidateOf } from "../config/policy.ts";
import { isWorkspaceFile } from "../config/workspace-rules.ts";
import { createLogger, type Logger, type ServiceLog } from "../core/logger.ts";
import { within } from "../core/within.ts";
import { reuseCompiledCode } from "./compiled-code.ts";
import { reloadedSettings } from "./live-config.ts";
import type { Server } from "./server.ts";

/** Place of a service's store. */
type TableFlags = { data?: string; config?: string };

// Checking a configuration needs nothing of the server, and loading that takes longer than the check.
const loadServer = () => import("./server.ts");

/**
 * Closes what the program that started this process left open, and what commands would inherit in turn: a directory among it shows
 * them the whole disk. Node protects only the first descriptors.
 */
function closeInherited(log: Logger): void {
  const descriptors = process.platform === "linux" ? readdirSync("/proc/self/fd").map(Number) : [];
  const certificates = extraCertificates();
  const inherited = descriptors.filter(
    (descriptor) => descriptor > 2 && isInheritable(descriptor) && targetOf(descriptor) !== certificates,
  );
  for (const descriptor of inherited) closeSync(descriptor);
  if (inherited.length === 0) return;
  log.warn("closed files that the program which started this service left open", { count: inherited.length });
}

/** Returns the file of certificates that a thread of Node reads at the start: it closes the number of its descriptor itself, whatever file that is by then. */
function extraCertificates(): string | undefined {
  const { NODE_EXTRA_CA_CERTS: file = "" } = readEnvironment().env;
  try {
    return file === "" ? undefined : realpathSync(file);
  } catch {
    return undefined;
  }
}

function targetOf(descriptor: number): string {
  try {
    return readlinkSync(`/proc/self/fd/${descriptor}`);
  } catch {
    return "";
  }
}

/** Reads from the kernel if a child of this process would get a descriptor. */
function isInheritable(descriptor: number): boolean {
  try {
    const [, flags = ""] = /^flags:\s+([0-7]+)$/m.exec(readFileSync(`/proc/self/fdinfo/${descriptor}`, "utf8")) ?? [];
    return (Number.parseInt(flags, 8) & closeOnExec) === 0;
  } catch {
    // The one by which the list was read.
    return false;
  }
}

const closeOnExec = 0o2000000;

/** Serves until the process gets SIGTERM or SIGINT, then drains; a second signal ends the process at once. */
export async function serveUntilStopped(
  flags: Flags,
  onStart: (started: ReturnType<typeof describeServer>) => void,
): Promise<void> {
  const config = loadConfig(flags, readEnvironment());
  const log = createLogger({
    level: config.logLevel,
    file: join(config.dataDirectory, "log", "toolgate.log"),
    rotation: config.logRotation,
  });
  process.once("exit", log.flushNow);
  closeInherited(log);
  let onHangUp = log.reopen;
  const hangUp = () => onHangUp();
  process.on("SIGHUP", hangUp);
  const storeCompiledCode = reuseCompiledCode(config.dataDirectory);
  const { startServer } = await loadServer();
  const server = await startServer(config, log);
  onHangUp = createReload({ server, started: config, load: () => loadPresentConfig(flags), log });
  // A program that reads that it has started may stop it at once.
  const stopSignal = Promise.race([once(process, "SIGTERM"), once(process, "SIGINT")]);
  onStart(describeServer(config, server));
  for (const { message } of [...tokenWarnings(config.tokens), ...searchWarnings(config)]) log.warn(message);
  log.info("service started", { address: server.url });
  setTimeout(() => {
    storeCompiledCode();
    collectGarbage();
  }, 2_000).unref();
  const signal = await stopSignal;
  process.once("SIGTERM", () => process.exit(1)).once("SIGINT", () => process.exit(1));
  log.info("stopping", { reason: String(signal[0] ?? "signal") });
  // A failed stop ends as well: what it leaves is what a crash leaves.
  const code = await server.close().then(
    () => 0,
    (error: unknown) => {
      log.error("the stop failed", { error });
      return 1;
    },
  );
  process.off("SIGHUP", hangUp);
  await within(1_000, log.flush(), () => undefined);
  // A stalled reader of stderr must not keep the process alive, nor a connection to a sentinel that the driver forgot to close.
  process.exit(code);
}

/** Gives back the memory that the start needed, a fifth of all: V8 keeps it until a collection that an idle service never makes. */
function collectGarbage(): void {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc");
  setFlagsFromString("--no-expose-gc");
  collect({ type: "major", execution: "sync", flavor: "last-resort" });
}

/** Reads the configuration as a start would, and refuses what check-config refuses. */
function loadPresentConfig(flags: Flags): Config {
  const config = loadConfig(flags, readEnvironment());
  checkPluginFiles(config);
  return config;
}

/** Starts a service for this process alone, with its own store and tokens, and deletes both when it closes. */
export async function embedService({ workspace, config: file }: { workspace?: string; config?: string }) {
  const data = await mkdtemp(join(tmpdir(), "toolgate-run-"));
  const tokens = { caller: randomToken(), approver: randomToken() };
  const config = await configOfEmbedded(data, {
    ...(workspace !== undefined && { workspace }),
    ...(file !== undefined && { config: file }),
  });
  const log = createLogger({ level: "error", file: join(data, "log", "toolgate.log") });
  closeInherited(log);
  const { startServer } = await loadServer();
  const server = await startServer(
    { ...config, tokens: [configuredToken("caller", tokens.caller), configuredToken("approver", tokens.approver)] },
    log,
  );
  return {
    url: server.url,
    tokens,
    async close() {
      await server.close();
      await rm(data, { recursive: true, force: true });
    },
  };
}

/** Trusts the code of a workspace's tools as it is now, or no longer. */
export async function trustDirectory(
  directory: string,
  { data, config: file, remove }: { data?: string; config?: string; remove?: boolean },
) {
  const flags: Flags = {
    workspace: directory,
    ...(data !== undefined && { data }),
    ...(file !== undefined && { config: file }),
  };
  const { trustDirectory, workspaces } = loadConfigForCheck(flags, readEnvironment());
  checkDataExists(dirname(trustDirectory));
  const { trustWorkspace } = await import("./skills.ts");
  return await trustWorkspace(trustDirectory, workspaces.get("default") ?? directory, remove ?? false);
}

/** Restores a backup into the data directory of a service that is stopped. */
export async function restoreDirectory(file: string, data: string) {
  const { restoreInto } = await import("./store.ts");
  return await restoreInto(resolve(data), resolve(file));
}

/** Opens the table of credentials for the operator, who may write to the data directory. */
export async function openLocalCredentials(flags: TableFlags) {
  const place = findStore(flags, readEnvironment());
  const [{ openCredentials }, { createLocalCredentials }] = await Promise.all([
    import("./store.ts"),
    import("../people/local-credentials.ts"),
  ]);
  const { table, close } = await openCredentials(place, silent);
  return { ...createLocalCredentials(table), place: place.store === "sqlite" ? place.dataDirectory : "Redis", close };
}

/**
 * Checks a configuration file against the permissions that the built-in tools declare, and the skills beside it; without a name,
 * the file that a server would read.
 */
export async function checkConfiguration(named?: string) {
  const [{ declaredTools }, { checkUserSkills }] = await Promise.all([
    import("./built-in-tools.ts"),
    import("./skills.ts"),
  ]);
  const environment = readEnvironment();
  const checked = await checkConfig(named, environment, await declaredTools());
  if (isWorkspaceFile(checked.file)) return checked;
  const skills = await checkUserSkills(userSkillDirectories(checked.file, environment.home));
  return { ...checked, findings: [...checked.findings, ...skills] };
}

/** Returns the format of the store that this version writes for a configuration. */
export async function formatOfStore(flags: TableFlags): Promise<{ format: number; isShared: boolean }> {
  const { store } = findStore(flags, readEnvironment());
  if (store === "sqlite") return { format: (await import("../store/sqlite/schema.ts")).schemaVersion, isShared: false };
  return { format: (await import("../store/redis/contents.ts")).storeFormat, isShared: true };
}

/** Repeats the recorded decisions of a backup by the rules of a configuration. */
export async function repeatBackup(flags: TableFlags, backup: string) {
  const { repeatDecisions } = await import("./repeat-backup.ts");
  return await repeatDecisions(loadConfigForCheck(flags, readEnvironment()), resolve(backup));
}

/** Reads the tables of the rules of a file, to try them elsewhere. */
export function candidateOfFile(file: string): string {
  return candidateOf(readFileSync(file, "utf8"), file, readEnvironment().home);
}

async function configOfEmbedded(data: string, flags: Flags): Promise<Config> {
  const { env, ...place } = readEnvironment();
  // The directories that the person's service trusts and protects are trusted and protected here as well.
  const service = findService(flags, { env, ...place });
  // The sandbox can only hide what exists, and no tool can create what cannot be created here.
  await mkdir(service.serviceDirectory, { recursive: true, mode: 0o700 }).catch(() => {});
  const { healthListen: _, ...config } = loadConfig(
    { ...flags, listen: "127.0.0.1:0", data },
    { env: { ...env, TOOLGATE_STORE: "sqlite" }, ...place },
  );
  return {
    ...{ ...config, ...service },
    tls: undefined,
    tracing: false,
    // Those of the person's service: receivers would get records that end here, and Slack sends each answer to one of its sockets.
    ...{ auditExports: [], channels: [], notify: [] },
    drainMs: 2_000,
  };
}

/** Describes a server that has started, for its first lines. */
function describeServer(config: Config, { url, warnings, adoptedApprover, createSignInCode }: Server) {
  const { dataDirectory, workspaces, tls, insecureNoAuth, unattended, callerTokenFile } = config;
  return {
    url,
    dataDirectory,
    workspaces,
    isTls: tls !== undefined,
    isOpenToAll: insecureNoAuth,
    unattended,
    ...(callerTokenFile !== undefined && { callerTokenFile }),
    warnings,
    adoptedApprover,
    createSignInCode,
  };
}

function configuredToken(role: "caller" | "approver", value: string): Config["tokens"][number] {
  return { id: role, roles: [role], agents: ["*"], workspaces: ["*"], sha256: hashOf(value) };
}

const silent: Logger = { debug() {}, info() {}, warn() {}, error() {} };
const randomToken = () => randomBytes(32).toString("base64url");
const hashOf = (token: string) => createHash("sha256").update(token).digest("hex");

/**
 * Creates the handler of SIGHUP: it opens the log file again and applies tokens, policy, search providers and MCP servers of the configuration
 * as it is then. A configuration that a start would refuse changes nothing. Reloads run one after the other.
 */
function createReload({
  server,
  started,
  load,
  log,
}: {
  server: Pick<Server, "reload">;
  /** The configuration of the start. */
  started: Config;
  load: () => Config;
  log: ServiceLog;
}): () => void {
  let last = Promise.resolve();

  async function reload(): Promise<void> {
    try {
      const next = load();
      await server.reload(next);
      log.info("configuration reloaded: its tokens, rules, search providers and MCP servers are in force");
      const others = Object.keys(next).filter(
        (key) =>
          !reloadedSettings.some((name) => name === key) && !isDeepStrictEqual(get(next, key), get(started, key)),
      );
      if (others.length > 0) log.warn(`settings changed that need a restart: ${others.join(", ")}`);
    } catch (error) {
      log.error(
        "configuration not reloaded: tokens, rules, search providers and MCP servers stay as they were; correct it and send SIGHUP again",
        {
          error,
        },
      );
    }
  }

  return () => {
    log.reopen();
    last = last.then(reload);
  };
}

const get = (config: Config, key: string): unknown => Object.entries(config).find(([name]) => name === key)?.[1];
