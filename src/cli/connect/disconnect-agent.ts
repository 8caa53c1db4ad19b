import { Code, ConnectError } from "@connectrpc/connect";
import { readIfExists } from "../../core/read-if-exists.ts";
import type { ServerConnection } from "../connection/connection.ts";
import { UsageError } from "../failure/command-error.ts";
import { type AgentUser, asAgentUser } from "./agent-user.ts";
import { applyChanges, digestOfText, type PlannedChange } from "./file-change.ts";
import { hasEntry, removeEntries } from "./json-entries.ts";
import { type ConnectRecord, systemFilesOf, systemRecordFile, type WrittenFile, writeRecord } from "./record.ts";

/** Plans how the files become what they were. One that changed since loses only our entries; a changed file of ours stays. */
export function planDisconnect({ kind, files, credentials }: ConnectRecord, user: AgentUser): PlannedChange[] {
  const ofSystem = systemFilesOf(kind, user).map((file) => ({ ...restored(file), isSystem: true }));
  if (ofSystem.length > 0 && process.geteuid?.() !== 0)
    throw new UsageError(
      `only root can take the hooks out of ${ofSystem.map(({ path }) => path).join(", ")}`,
      `run it with sudo: toolgate disconnect ${kind} --user ${user.name}`,
    );
  const path = systemRecordFile(kind);
  const record = { path, before: readIfExists(path), after: undefined, isSystem: true };
  return [
    ...ofSystem,
    ...(ofSystem.length > 0 ? [record] : []),
    ...asAgentUser(user, () => [
      ...files.map(restored),
      ...credentials.map(({ file: path }) => ({ path, before: readIfExists(path), after: undefined, isSecret: true })),
    ]),
  ];
}

function restored({ path, sha256, entries, original }: WrittenFile): PlannedChange {
  const before = readIfExists(path);
  if (before === undefined) return { path, before, after: undefined };
  if (digestOfText(before) === sha256 && original !== undefined) return { path, before, after: original ?? undefined };
  return { path, before, after: entries === undefined ? before : removeEntries(path, before, entries) };
}

/** Restores the files, revokes the tokens, and unregisters the connector; returns what could not be undone. */
export async function undoConnector(
  record: ConnectRecord,
  changes: readonly PlannedChange[],
  { user, approver }: { user: AgentUser; approver: ServerConnection },
): Promise<string[]> {
  const ofSystem = systemFilesOf(record.kind, user);
  applyChanges(changes, user);
  // Only what is gone already may be missing at the service.
  for (const { id } of record.credentials) await unlessGone(approver.credentials.revokeCredential({ id }));
  await unlessGone(approver.agents.unregisterConnector({ id: record.connectorId }));
  writeRecord(record.kind, user, undefined);
  return asAgentUser(user, () => [...ofSystem, ...record.files].flatMap(leftIn));
}

async function unlessGone(done: Promise<unknown>): Promise<void> {
  await done.catch((error: unknown) => {
    if (!(error instanceof ConnectError && error.code === Code.NotFound)) throw error;
  });
}

function leftIn({ path, sha256, entries, original }: WrittenFile): string[] {
  const text = readIfExists(path);
  if (text === undefined) return [];
  if (entries === undefined)
    return digestOfText(text) === sha256 || original === null ? [`${path} was changed, and stays`] : [];
  return entries.some((entry) => hasEntry(path, text, entry)) ? [`${path} still has entries of the connector`] : [];
}
