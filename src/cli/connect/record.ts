import { join } from "node:path";
import { z } from "zod";
import { readIfExists } from "../../core/read-files.ts";
import { CommandError, exitCodes } from "../failure/command-error.ts";
import { type AgentUser, asAgentUser } from "./agent-user.ts";
import { applyChanges, type PlannedChange, resolvedPath } from "./file-change.ts";

/** The kinds of agents that can be connected. */
export const agentKinds = ["claude", "codex", "copilot", "gemini", "opencode", "mcp"] as const;

/** A kind of agent. */
export type AgentKind = (typeof agentKinds)[number];

const json = z.json();

const entry = z.object({ path: z.array(z.string()), value: json, isItem: z.boolean().optional() });

const row = z.object({
  tool: z.string(),
  result: z.enum(["asks", "runs unasked", "disabled", "not verified"]),
  /** Reason why it is not verified, in the words of the agent. */
  reason: z.string().optional(),
});

const writtenFile = z.object({
  path: z.string(),
  sha256: z.string(),
  entries: z.array(entry).optional(),
  /** The text before, if it was small enough to store; null if there was no file. */
  original: z.string().nullable().optional(),
});

const schema = z.object({
  kind: z.enum(agentKinds),
  server: z.string(),
  /** The user that owns the service's socket on this machine. */
  uid: z.number().int().optional(),
  /** The SHA-256 of the service's certificate. */
  certificate: z.string().optional(),
  /** The file of the authority that signed the certificate, PEM. */
  ca: z.string().optional(),
  /** The file of the token with which the agent asks: of the hook, or for an MCP client that of its server. */
  tokenFile: z.string(),
  /** The name under which the agent knows our MCP server. */
  mcpName: z.string(),
  connectorId: z.string(),
  /** IDs of the agent's credentials, with the files of their tokens. */
  credentials: z.array(z.object({ id: z.string(), file: z.string() })),
  /** Written files. One with entries belongs to the agent, and only the entries are ours. */
  files: z.array(writtenFile),
  /** Digests, by path, of code of projects that opencode may load. */
  accepted: z.record(z.string(), z.string()).optional(),
  /** The program of Codex, and what its configuration had where `connect` wrote; null: nothing. */
  codex: z.object({ program: z.string(), undo: z.array(z.object({ keyPath: z.string(), value: json })) }).optional(),
  canary: z.object({ program: z.string(), checked: z.number(), problem: z.string(), rows: z.array(row) }).optional(),
});

/** Record of the files that `toolgate connect` wrote for an agent, and of the service for its hook. */
export type ConnectRecord = z.output<typeof schema>;

/** A file that a connector wrote. */
export type WrittenFile = z.output<typeof writtenFile>;

const systemSchema = z.object({
  /** The name of the user whose agent was connected. */
  user: z.string(),
  files: z.array(writtenFile),
  /** Programs that the hooks run. */
  programs: z.array(z.string()).optional(),
});

/** Record of the files of root that `toolgate connect --system` wrote. Its own file belongs to root: the one of the user could name any file. */
export type SystemRecord = z.output<typeof systemSchema>;

/** Result of a canary: what the agent does with each of its native tools. */
export type CanaryResult = NonNullable<ConnectRecord["canary"]>;

/** Returns the file of a record, with links resolved. */
export function recordFile(kind: AgentKind, user: AgentUser): string {
  const configHome = user.env.XDG_CONFIG_HOME || join(user.home, ".config");
  return asAgentUser(user, () => resolvedPath(join(configHome, "toolgate", "connect", `${kind}.json`)));
}

/** Reads a record; undefined if the kind is not connected. */
export function readRecord(kind: AgentKind, user: AgentUser): ConnectRecord | undefined {
  const file = recordFile(kind, user);
  const text = asAgentUser(user, () => readIfExists(file));
  return text === undefined ? undefined : parseRecord(schema, { kind, file, text });
}

/** Returns the file of the record of what `connect --system` wrote. */
export const systemRecordFile = (kind: AgentKind): string => `/etc/toolgate/connect/${kind}.json`;

/** Reads the record of what `connect --system` wrote on this machine. */
export function readSystemRecord(kind: AgentKind): SystemRecord | undefined {
  const file = systemRecordFile(kind);
  const text = readIfExists(file);
  return text === undefined ? undefined : parseRecord(systemSchema, { kind, file, text });
}

/** Returns the files of root that belong to the connector of a user; none without `--system`. */
export function systemFilesOf(kind: AgentKind, { name }: AgentUser): readonly WrittenFile[] {
  const record = readSystemRecord(kind);
  return record?.user === name ? record.files : [];
}

function parseRecord<Schema extends z.ZodType>(
  schema: Schema,
  { kind, file, text }: { kind: AgentKind; file: string; text: string },
): z.output<Schema> {
  try {
    return schema.parse(JSON.parse(text));
  } catch (cause) {
    throw new CommandError(
      `${file} is not a record of \`toolgate connect\``,
      `restore it, or remove it and run \`toolgate connect ${kind}\` again`,
      exitCodes.failed,
      { cause },
    );
  }
}

/** Replaces or removes a record. */
export function writeRecord(kind: AgentKind, user: AgentUser, record: ConnectRecord | undefined): void {
  applyChanges([recordChange(kind, user, record)], user);
}

/** Plans the change of a record. */
export function recordChange(kind: AgentKind, user: AgentUser, record: ConnectRecord | undefined): PlannedChange {
  const path = recordFile(kind, user);
  const after = record && `${JSON.stringify(record, null, 2)}\n`;
  return { path, before: asAgentUser(user, () => readIfExists(path)), after, isSecret: true };
}
