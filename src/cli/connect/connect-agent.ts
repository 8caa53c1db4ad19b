import { randomBytes } from "node:crypto";
import { hostname } from "node:os";
import { dirname, join } from "node:path";
import type { Enforcement } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { findServiceUid } from "../../client/find-peer-proof.ts";
import type { PeerProof } from "../../client/verified-socket.ts";
import { readIfExists } from "../../core/read-files.ts";
import type { ServerConnection } from "../connection/connection.ts";
import { CommandError, exitCodes } from "../failure/command-error.ts";
import { agentFiles, hookPrograms } from "./agent-files.ts";
import { type AgentUser, asAgentUser } from "./agent-user.ts";
import { type CodexEdit, configureCodex } from "./codex.ts";
import {
  addEntries,
  applyChanges,
  digestOfText,
  type PlannedChange,
  resolvedPath,
  revertChanges,
} from "./file-change.ts";
import {
  type AgentKind,
  type ConnectRecord,
  recordChange,
  recordFile,
  type SystemRecord,
  systemRecordFile,
  type WrittenFile,
  writeRecord,
} from "./record.ts";

/** Dependencies of `toolgate connect`. */
export interface ConnectorOptions {
  readonly kind: AgentKind;
  readonly user: AgentUser;
  /** A connection that can approve. */
  readonly approver: ServerConnection;
  readonly proof: PeerProof;
  /** The words that run this program, by absolute paths. */
  readonly program: readonly string[];
  readonly ca: string | undefined;
  /** Workspace roots in which the agent may ask; empty: all. */
  readonly workspaces: readonly string[];
  readonly isHttpHook: boolean;
  /** True to write the hooks into the settings of the machine; only for root. */
  readonly isSystem: boolean;
  /** The program of the agent; Codex has to trust its hooks itself. */
  readonly agentProgram: string | undefined;
}

/** A connector before anything is written. */
export interface PlannedConnector {
  /** The changes to show, without the tokens. */
  readonly changes: readonly PlannedChange[];
  readonly mcpName: string;
  readonly tokens: readonly AgentToken[];
  readonly written: readonly WrittenFile[];
  /** Paths of the files of root among the changes. */
  readonly systemFiles: readonly string[];
  /** Values that Codex writes into its configuration. */
  readonly codex: readonly CodexEdit[];
}

/** A token that the agent gets. */
interface AgentToken {
  readonly role: "host" | "caller";
  readonly file: string;
}

/** Plans the files of a connector. Nothing is written. */
export function planConnector(planned: ConnectorOptions): PlannedConnector {
  const { kind, user, approver, proof, program, ca, isHttpHook, isSystem } = planned;
  // Its entry belongs to the user, who could put another program there: hooks that are to be enforced let no server pass.
  const mcpName = kind === "claude" && isSystem ? "" : `tg_${randomBytes(4).toString("hex")}`;
  const directory = dirname(recordFile(kind, user));
  const tokenOf = (role: AgentToken["role"]): AgentToken => ({
    role,
    file: join(directory, `${kind}.${role}-token`),
  });
  const [caller, host] = [tokenOf("caller"), tokenOf("host")];
  const files = { mcpTokenFile: caller.file, hookTokenFile: host.file };
  const options = { program, server: approver.url, proof, ca, mcpName, ...files, isHttpHook, isSystem };
  const { json, whole, codex = [] } = asAgentUser(user, () => agentFiles[kind](user, options));
  const changes: PlannedChange[] = [];
  const written: WrittenFile[] = [];
  const ofSystem: WrittenFile[] = [];
  const readAs = (named: string, isSystem: boolean) => {
    const read = () => {
      const path = resolvedPath(named);
      return { path, before: readIfExists(path) };
    };
    return isSystem ? read() : asAgentUser(user, read);
  };
  for (const { path: named, entries, isSystem = false } of json) {
    const { path, before } = readAs(named, isSystem);
    const after = addEntries(path, before, entries);
    changes.push({ path, before, after, isSystem });
    (isSystem ? ofSystem : written).push({
      path,
      sha256: digestOfText(after),
      entries: [...entries].map(copyOfEntry),
      ...originalOf(before),
    });
  }
  for (const { path: named, text, isSystem = false } of whole) {
    const { path, before } = readAs(named, isSystem);
    if (isSystem && before !== undefined)
      throw new CommandError(
        `${path} exists already, and holds for the whole machine`,
        `move it away, connect, and add what it had; or leave out --system`,
        exitCodes.failed,
      );
    changes.push({ path, before, after: text, isSystem });
    (isSystem ? ofSystem : written).push({ path, sha256: digestOfText(text), ...originalOf(before) });
  }
  if (ofSystem.length > 0)
    changes.push(systemRecordChange(kind, { user: user.name, files: ofSystem, programs: hookPrograms(program) }));
  const tokens = kind === "mcp" ? [caller] : [host, ...(mcpName === "" ? [] : [caller])];
  const systemFiles = changes.filter(({ isSystem }) => isSystem).map(({ path }) => path);
  return { changes, mcpName, tokens, written, systemFiles, codex };
}

function systemRecordChange(kind: AgentKind, record: SystemRecord): PlannedChange {
  const path = systemRecordFile(kind);
  return { path, before: readIfExists(path), after: `${JSON.stringify(record, null, 2)}\n`, isSystem: true };
}

const copyOfEntry = ({
  path,
  value,
  isItem,
}: {
  path: readonly string[];
  value: unknown;
  isItem?: boolean | undefined;
}) => ({
  path: [...path],
  value: value as NonNullable<WrittenFile["entries"]>[number]["value"],
  ...(isItem && { isItem }),
});

/** The text before, for `disconnect`; a large one is not stored, and then only our entries are removed. */
function originalOf(before: string | undefined): Pick<WrittenFile, "original"> {
  if (before === undefined) return { original: null };
  return before.length > maxOriginal ? {} : { original: before };
}

const maxOriginal = 262_144;

/**
 * Makes a planned connector: creates the tokens, writes the files, and registers them. If a file changed meanwhile, or the service
 * does not answer, the files are as before and the tokens are revoked.
 */
export async function makeConnector(
  options: ConnectorOptions,
  { changes, mcpName, tokens, written, systemFiles, codex }: PlannedConnector,
): Promise<{ record: ConnectRecord; enforcement: Enforcement | undefined }> {
  const { kind, user, approver, proof, ca, workspaces, isHttpHook, agentProgram: program } = options;
  const place = `${user.name}@${hostname()}`;
  const { storeId } = await approver.tools.getServerInfo({});
  const record: ConnectRecord = {
    ...{ kind, server: approver.url, storeId, ...proof, ...(ca !== undefined && { ca }), mcpName },
    ...{ tokenFile: tokens[0]?.file ?? "", connectorId: "", credentials: [], files: [...written] },
  };
  const all = [...changes];
  let enforcement: Enforcement | undefined;
  try {
    for (const { role, file } of tokens) {
      const label = `${kind}@${hostname()}`;
      const rights = { roles: [role], workspaces: [...workspaces], label };
      const { token, credential } = await approver.credentials.createToken(rights);
      if (credential === undefined) continue;
      record.credentials.push({ id: credential.id, file });
      const before = asAgentUser(user, () => readIfExists(file));
      all.push({ path: file, before, after: `${token}\n`, isSecret: true });
    }
    // The last one: with it `disconnect` can remove the others.
    all.push(recordChange(kind, user, record));
    applyChanges(all, user);
    const own = [...written.map(({ path }) => path), ...record.credentials.map(({ file }) => file)];
    const files = [...systemFiles, ...own, recordFile(kind, user)];
    const systemLevel = systemFiles.length > 0;
    const enforced = !isHttpHook && (await isOtherUser(approver.url, user));
    const { connector } = await approver.agents.registerConnector({
      ...{ kind, place, mcpName, files, uid: Math.max(user.uid, 0), enforced, systemLevel },
    });
    record.connectorId = connector?.id ?? "";
    enforcement = connector?.enforcement;
  } catch (error) {
    // First, since the files may not be writable.
    await Promise.allSettled(record.credentials.map(({ id }) => approver.credentials.revokeCredential({ id })));
    revertChanges(all, user);
    throw error;
  }
  writeRecord(kind, user, record);
  if (codex.length > 0 && program !== undefined) {
    record.codex = { program, undo: await configureCodex({ program, user }, codex, mcpName) };
    writeRecord(kind, user, record);
  }
  return { record, enforcement };
}

/** Checks if the service runs as another user than the agent, on the same machine. */
async function isOtherUser(url: string, user: AgentUser): Promise<boolean> {
  const uid = await findServiceUid(url);
  return uid !== undefined && uid !== user.uid;
}

/** Refuses a kind that is connected already. */
export function alreadyConnected({ kind, server }: ConnectRecord): CommandError {
  return new CommandError(
    `${kind} is already connected to ${server}`,
    `check it with \`toolgate connect --check ${kind}\`, or run \`toolgate disconnect ${kind}\` first`,
    exitCodes.failed,
  );
}
