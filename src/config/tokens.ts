import { createHash, randomBytes, randomUUID } from "node:crypto";
import { existsSync, linkSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Role, WorkerRights } from "../core/principal.ts";
import { isReadableBy } from "../core/readable-by.ts";
import { workerRightsProblem } from "../core/worker-rights.ts";
import { canonicalPath, checkOutside, createPrivateDirectory, readOperatorFile } from "./paths.ts";
import type { Settings } from "./schema.ts";
import { ConfigError } from "./toml.ts";

/** A token. Its text is not stored, so that it cannot be logged. */
export interface Token {
  id: string;
  roles: readonly Role[];
  /** The agents as which it may act; `*` means all. */
  agents: readonly string[];
  /** The workspace roots in which it may act; `*` means all. */
  workspaces: readonly string[];
  /** The person who answers with it; absent: the token stands for itself. */
  person?: { readonly issuer: string; readonly subject: string };
  /** Set for the role worker. */
  worker?: WorkerRights;
  /** SHA-256 of the token, hex. */
  sha256: string;
  /** The file that contains its text. */
  source?: string;
}

type TokenSettings = Settings["token"][number];
type Variables = Readonly<Record<string, string | undefined>>;

/**
 * Reads the configured tokens. Without any, `generated` is the file of the caller token, which the first start creates; people
 * who approve sign in with codes.
 */
export function readTokens(given: {
  settings: Settings;
  /** The configuration file. */
  file: string;
  env: Variables;
  workspaces: ReadonlyMap<string, string>;
  dataDirectory: string;
  insecureNoAuth: boolean;
  /** False for replicas on a shared store: each would create a different token. */
  makeOwn: boolean;
  /** True if nothing may be created: then a service without configured tokens has none. */
  isCheck: boolean;
}): { tokens: Token[]; generated?: string } {
  const { settings, env, workspaces, dataDirectory, insecureNoAuth, makeOwn, isCheck } = given;
  const tokens = settings.token.map((token) => {
    if (token.file !== undefined) checkOutside(token.file, `the file of token "${token.id}"`, workspaces);
    checkTokenWorkspaces(token, workspaces);
    const source = token.value === undefined ? token.file : given.file;
    return {
      ...rightsOf(token),
      sha256: token.sha256 ?? hashOfToken(token.id, readValue(token, env)),
      ...(source !== undefined && { source: canonicalPath(source) }),
    };
  });
  refuseTwins(tokens);
  if (tokens.length > 0 || insecureNoAuth) return { tokens };
  if (makeOwn) return isCheck ? { tokens: [] } : ownToken(dataDirectory);
  throw new ConfigError("replicas on a shared store need the same tokens; configure each [[token]] with file or env");
}

function rightsOf(settings: TokenSettings): Omit<Token, "sha256"> {
  const { id, roles, agents, workspaces } = settings;
  const worker = workerRightsOf(settings);
  return { id, roles, agents, workspaces, ...(worker && { worker }) };
}

/** Reads the limits of a worker, and refuses those that other roles do not have. */
export function workerRightsOf(
  settings: Pick<TokenSettings, "id" | "roles" | (typeof workerKeys)[number]>,
): WorkerRights | undefined {
  const { id, roles, tools = [], permissions = [], calls = [], idempotent = false, pin = [] } = settings;
  const isNamed = workerKeys.some((key) => settings[key] !== undefined);
  const worker = isNamed ? { tools, permissions, calls, idempotent, pin } : undefined;
  const problem = workerRightsProblem({ roles, worker });
  if (problem !== undefined) throw new ConfigError(`token "${id}": ${problem.message}`);
  return worker;
}

const workerKeys = ["tools", "permissions", "calls", "idempotent", "pin"] as const;

/** Refuses workspaces that are unknown, and workspaces of a role that they do not limit. */
export function checkTokenWorkspaces(
  { id, roles, workspaces }: Pick<TokenSettings, "id" | "roles" | "workspaces">,
  roots: ReadonlyMap<string, string>,
): void {
  // A check of a file alone knows no roots: the default one depends on where the service starts.
  const unknown = roots.size === 0 ? undefined : workspaces.find((name) => name !== "*" && !roots.has(name));
  if (unknown !== undefined)
    throw new ConfigError(
      `token "${id}": workspace "${unknown}" is not configured; configured are: ${[...roots.keys()].join(", ")}`,
    );
  const unlimited = roles.find((role) => ["approver", "watcher", "admin", "relay"].includes(role));
  if (unlimited === undefined || workspaces.includes("*")) return;
  throw new ConfigError(
    `token "${id}": workspaces do not limit the role ${unlimited}, which reads all sessions; leave workspaces out, or give only the roles caller, host and worker`,
  );
}

/**
 * Finds tokens whose principal can approve what it asks for, since its calls would then have no second pair of eyes, and those that can
 * approve and that every user of this machine can read.
 */
export function tokenWarnings(tokens: readonly Token[]): { id: string; message: string }[] {
  const approving = tokens.filter(canApprove);
  return [
    ...approving
      .filter(({ roles }) => roles.includes("caller"))
      .map(({ id }) => ({
        id,
        message: `token "${id}" is caller and approver: a client that has it can approve its own calls; give the agent a token with the role caller only`,
      })),
    ...approving
      .filter(({ source }) => source !== undefined && isReadableBy("others", source))
      .map(({ id, source }) => ({
        id,
        message: `token "${id}" can approve, and every user of this machine can read ${source}, where it stands: an agent can answer its own calls; chmod 600 the file, or configure sha256, and make a new token`,
      })),
  ];
}

const canApprove = ({ roles }: Pick<Token, "roles">): boolean =>
  roles.some((role) => ["approver", "admin", "relay"].includes(role));

/** Refuses equal tokens: a token must identify one principal. */
function refuseTwins(tokens: readonly Token[]): void {
  for (const [index, token] of tokens.entries()) {
    const twin = tokens.slice(0, index).find(({ id, sha256 }) => id === token.id || sha256 === token.sha256);
    if (twin === undefined) continue;
    const same = twin.id === token.id ? "id" : "value";
    throw new ConfigError(`tokens "${twin.id}" and "${token.id}" have the same ${same}; give each a different one`);
  }
}

function ownToken(dataDirectory: string): { tokens: Token[]; generated: string } {
  const file = join(createPrivateDirectory(join(dataDirectory, "tokens")), "caller");
  // A start on a full disk leaves the file empty.
  if (statSync(file, { throwIfNoEntry: false })?.size === 0) rmSync(file);
  createToken(file);
  const rights = { id: "caller", roles: ["caller"] as const, agents: ["*"], workspaces: ["*"] };
  return {
    tokens: [{ ...rights, sha256: hashOfToken("caller", readOperatorFile(file, `token "caller":`).trim()) }],
    generated: file,
  };
}

function hashOfToken(id: string, value: string): string {
  if (!/^[A-Za-z0-9._~+/-]+=*$/.test(value)) {
    throw new ConfigError(
      `token "${id}" is empty or contains characters that a bearer token must not have; make one with: openssl rand -hex 32`,
    );
  }
  if (value.length < minTokenLength) {
    throw new ConfigError(
      `token "${id}" has ${value.length} characters, so it can be guessed: use at least ${minTokenLength}; make one with: openssl rand -hex 32`,
    );
  }
  return createHash("sha256").update(value).digest("hex");
}

const minTokenLength = 20;

/** Creates the file with its content in one step: another first start at the same time reads this token, or this one reads its. */
function createToken(file: string): void {
  if (existsSync(file)) return;
  const next = `${file}.${randomUUID()}.new`;
  try {
    writeFileSync(next, `${randomBytes(32).toString("base64url")}\n`, { mode: 0o600, flag: "wx", flush: true });
    linkSync(next, file);
  } catch (error) {
    if (!(error instanceof Error && "code" in error && error.code === "EEXIST")) throw error;
  } finally {
    rmSync(next, { force: true });
  }
}

function readValue({ id, value, file, env: variable = "" }: TokenSettings, env: Variables): string {
  if (value !== undefined) return value;
  if (file !== undefined) return readOperatorFile(file, `token "${id}":`).trim();
  const found = env[variable];
  if (found !== undefined) return found;
  throw new ConfigError(`token "${id}": the environment variable ${variable} is not set; set it, or use file`);
}
