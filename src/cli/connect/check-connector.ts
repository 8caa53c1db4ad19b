import { lstatSync, readlinkSync, realpathSync, type Stats, statSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { parseEnv } from "node:util";
import { parse as parseToml } from "smol-toml";
import type { Connector } from "../../../gen/opencode/tool/v1/agent_service_pb.ts";
import { type Enforcement, EnforcementState } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { agentFacts } from "../../agents/hooks/agent-facts.ts";
import { connectVerified } from "../../client/connect.ts";
import { type Certificates, openVerifiedSocket } from "../../client/verified-socket.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { readIfExists } from "../../core/read-files.ts";
import type { ServerConnection } from "../connection/connection.ts";
import { commandFailure } from "../failure/failure.ts";
import { hookPrograms } from "./agent-files.ts";
import { type AgentUser, asAgentUser } from "./agent-user.ts";
import { codexProblems } from "./codex.ts";
import { digestOfText, findEntry, hasEntry } from "./file-change.ts";
import { findProjectPlugins, notAccepted, notAcceptedText } from "./project-plugins.ts";
import { type AgentKind, type ConnectRecord, readSystemRecord, systemFilesOf, type WrittenFile } from "./record.ts";

/** Result of a check. */
export interface CheckedConnector {
  /** Differences from what `connect` left. */
  readonly problems: readonly string[];
  /** Enforcement of approvals for the agent's user; undefined if the service did not say. */
  readonly enforcement: Enforcement | undefined;
}

/**
 * Verifies the files, what the project in `directory` sets, the service at the address, the tokens, and the registration if
 * `approver` is given. Approvals are not enforced as long as there is a problem.
 */
export async function checkConnector(record: ConnectRecord, options: CheckOptions): Promise<CheckedConnector> {
  const { problems, enforcement } = await findProblems(record, options);
  const [problem] = problems;
  if (problem === undefined || enforcement?.state !== EnforcementState.ENFORCED) return { problems, enforcement };
  return { problems, enforcement: { ...enforcement, state: EnforcementState.ADVISORY, reason: problem } };
}

interface CheckOptions {
  user: AgentUser;
  approver: ServerConnection | undefined;
  certificates: Certificates;
  directory: string;
}

async function findProblems(
  record: ConnectRecord,
  { user, approver, certificates, directory }: CheckOptions,
): Promise<CheckedConnector> {
  const ofSystem = systemFilesOf(record.kind, user);
  const programs = readSystemRecord(record.kind)?.programs ?? hookPrograms([process.execPath]);
  const problems = asAgentUser(user, () => [
    ...[...ofSystem, ...record.files].flatMap(problemsOf),
    ...(ofSystem.length === 0 ? [] : [...ofSystem.map(({ path }) => path), ...programs].flatMap(problemsOfOwner)),
    ...switchedOff(record.kind, { directory, ofMachine: ofSystem.length > 0 }),
    ...(record.kind === "opencode" ? pluginsOf(directory, record, user) : []),
  ]);
  if (record.kind === "codex")
    problems.push(...(await codexProblems({ program: record.codex?.program ?? "codex", user }, record.mcpName)));
  const peer = await problemOfPeer(record, certificates);
  // A program that only answers at the address gets no token.
  if (peer !== undefined) return { problems: [...problems, peer], enforcement: undefined };
  let enforcement: Enforcement | undefined;
  for (const { id, file } of record.credentials) {
    const token = asAgentUser(user, () => readIfExists(file))?.trim();
    const { problem, info } = await problemOfToken(record, { id, file, token }, certificates);
    if (problem !== undefined) problems.push(problem);
    // What the service sees of this process counts only if it runs as the agent.
    if (user.uid === process.getuid?.()) enforcement ??= info?.enforcement;
  }
  if (approver === undefined) return { problems, enforcement };
  const connectors = await allConnectors(approver);
  const registered = connectors.find(({ id }) => id === record.connectorId);
  if (registered === undefined)
    problems.push(
      `the service does not know the connector, so its files are not protected: connect ${record.kind} again`,
    );
  return { problems, enforcement: registered?.enforcement ?? enforcement };
}

/** Lists the connectors of all agents, newest first. */
export async function allConnectors({ agents }: ServerConnection): Promise<Connector[]> {
  const pages = await Array.fromAsync(pagesOf((page) => agents.listConnectors(page)));
  return pages.flatMap(({ connectors }) => connectors);
}

/** Names the settings of a project that switch off the hooks of an agent there. */
function switchedOff(kind: AgentKind, { directory, ofMachine }: { directory: string; ofMachine: boolean }): string[] {
  const { name, off } = agentFacts[kind] ?? { off: [] };
  const known = off.filter(({ reachesMachine }) => reachesMachine || !ofMachine);
  return known.flatMap(({ files, path, value }) =>
    files
      .map((file) => join(directory, file))
      .filter((file) => {
        const found = settingIn(file, path.split("."));
        return value === undefined ? found !== undefined : [found].flat().includes(value);
      })
      .map((file) => `${file} switches off the hooks of ${name} here (${path}): no tool asks`),
  );
}

/** Returns a setting of a file of a project. One that cannot be read is judged by the agent, which the canary runs. */
function settingIn(file: string, path: readonly string[]): unknown {
  const text = readIfExists(file);
  if (text === undefined) return undefined;
  try {
    if (file.endsWith(".env")) return valueAt(parseEnv(text), path);
    return valueAt(file.endsWith(".toml") ? parseToml(text) : findEntry(file, text, []), path);
  } catch {
    return undefined;
  }
}

/** Returns the value to which keys lead; a key with `*` at its end stands for all that begin so. */
function valueAt(value: unknown, path: readonly string[]): unknown {
  return path.reduce<unknown>((above, key) => {
    const fields: Readonly<Record<string, unknown>> = Object(above);
    const found = key.endsWith("*") ? Object.keys(fields).find((name) => name.startsWith(key.slice(0, -1))) : key;
    return found === undefined ? undefined : fields[found];
  }, value);
}

/** Names the code of a project because of which opencode may use no tool there. */
function pluginsOf(directory: string, { accepted }: ConnectRecord, { home }: AgentUser): string[] {
  const files = notAccepted(findProjectPlugins({ directory, root: "/", home }), accepted);
  return files.length === 0 ? [] : [notAcceptedText(files).fact];
}

/** Names the first file, link or directory, from a file upwards, that others than root can change, or that cannot be checked. */
export function problemsOfOwner(path: string): string[] {
  return hasTooManyLinks(path) ? [`${path} leads over more links than the system follows`] : openAbove(path, new Set());
}

function openAbove(path: string, checked: Set<string>): string[] {
  if (checked.has(path)) return [];
  checked.add(path);
  const found = findStats(path);
  if (found !== undefined && (found.uid !== 0 || isWritableByOthers(found)))
    return [`${path} can be changed by others than root`];
  const above = dirname(path);
  const target = found?.isSymbolicLink() ? [resolve(realpathSync(above), readlinkSync(path))] : [];
  return [...target, ...(above === path ? [] : [above])].flatMap((each) => openAbove(each, checked)).slice(0, 1);
}

/** The bits of the group count for the group of root, too: those of an access list stand there. */
function isWritableByOthers(found: Stats): boolean {
  if (found.isSymbolicLink() || (found.mode & 0o022) === 0) return false;
  // In a directory such as /tmp others cannot replace what belongs to root.
  return !found.isDirectory() || (found.mode & 0o1000) === 0;
}

/** Checks if links lead in a circle, or over so many that no program gets to the file. */
function hasTooManyLinks(path: string): boolean {
  try {
    statSync(path, { throwIfNoEntry: false });
    return false;
  } catch (error) {
    return error instanceof Error && "code" in error && error.code === "ELOOP";
  }
}

/** Returns nothing for what is missing or out of reach for this user: a hook that cannot be run blocks. */
function findStats(path: string): Stats | undefined {
  try {
    return lstatSync(path, { throwIfNoEntry: false });
  } catch {
    return undefined;
  }
}

function problemsOf({ path, sha256, entries }: WrittenFile): string[] {
  try {
    const text = readIfExists(path);
    if (text === undefined) return [`${path} is missing`];
    if (entries === undefined) return digestOfText(text) === sha256 ? [] : [`${path} was changed`];
    const missing = entries.filter((entry) => !hasEntry(path, text, entry));
    return missing.map((entry) => `${path} lacks the entry ${entry.path.join(".")}, or it was changed`);
  } catch (error) {
    return [error instanceof Error ? error.message : String(error)];
  }
}

async function problemOfPeer(record: ConnectRecord, certificates: Certificates): Promise<string | undefined> {
  try {
    (await openVerifiedSocket(record.server, record, certificates)).destroy();
    return undefined;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

async function problemOfToken(
  record: ConnectRecord,
  { id, file, token }: { id: string; file: string; token: string | undefined },
  certificates: Certificates,
) {
  if (token === undefined) return { problem: `${file} is missing` };
  const client = await connectVerified({ url: record.server, token, ...certificates }, record);
  try {
    const info = await client.tools.getServerInfo({});
    return info.principal === id ? { info } : { problem: `the token in ${file} is not that of ${id}` };
  } catch (error) {
    const server = { url: record.server, tokenSource: `the token in ${file} was sent`, tokenAdvice: "" };
    return { problem: `the token in ${file} does not work: ${commandFailure(error, server).message}` };
  } finally {
    client.close();
  }
}
