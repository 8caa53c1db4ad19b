import { Code } from "@connectrpc/connect";
import { Argument, type Command } from "commander";
import { pagesOf } from "../../core/pages-of.ts";
import { readIfExists } from "../../core/read-files.ts";
import { withServer } from "../command.ts";
import { type AgentUser, asAgentUser, findAgentUser } from "../connect/agent-user.ts";
import { allConnectors } from "../connect/check-connector.ts";
import { editCodex } from "../connect/codex.ts";
import {
  applyChanges,
  diffOf,
  digestOfText,
  hasEntry,
  type PlannedChange,
  removeEntries,
} from "../connect/file-change.ts";
import {
  type AgentKind,
  agentKinds,
  type ConnectRecord,
  readRecord,
  recordFile,
  systemFilesOf,
  systemRecordFile,
  type WrittenFile,
  writeRecord,
} from "../connect/record.ts";
import type { ServerConnection } from "../connection/connection.ts";
import type { CliContext } from "../context.ts";
import { CommandError, exitCodes, UsageError } from "../failure/command-error.ts";
import { unlessRefused } from "../failure/failure.ts";

/** Defines `toolgate disconnect`. */
export function defineDisconnect(command: Command, context: CliContext): void {
  command
    .description("Remove what `toolgate connect` wrote for an agent, and revoke its tokens")
    .addArgument(new Argument("<agent>", "the kind of agent").choices(agentKinds))
    .option("--user <name>", "the user as which the agent runs; only for root (default: yourself)")
    .action((kind: AgentKind, { user: named }: { user?: string }) =>
      withServer(context, command, "approver", async (approver, screen) => {
        const user = findAgentUser(named, screen.io);
        const record = readRecord(kind, user);
        if (record === undefined) throw new UsageError(`${kind} is not connected`, `see \`toolgate connect --check\``);
        if (record.server !== approver.url)
          throw new UsageError(`${kind} is connected to ${record.server}`, `add --server ${record.server}`);
        await checkIssued(record, user, approver);
        const changes = planDisconnect(record, user);
        for (const text of changes.map(diffOf)) screen.note(text.trimEnd());
        const left = await undoConnector(record, changes, { user, approver });
        for (const text of left) screen.alert(text);
        if (screen.json) screen.write(`${JSON.stringify({ kind, server: record.server, left })}\n`);
        else screen.note(`${kind} is disconnected, and its tokens are revoked`);
        return left.length === 0 ? exitCodes.ok : exitCodes.failed;
      }),
    );
}

/** Plans how the files become what they were. One that changed since loses only our entries; a changed file of ours stays. */
function planDisconnect({ kind, files, credentials }: ConnectRecord, user: AgentUser): PlannedChange[] {
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

/** Refuses a record that names tokens or a connector which `connect` did not make: it belongs to the agent's user. */
async function checkIssued(record: ConnectRecord, user: AgentUser, approver: ServerConnection): Promise<void> {
  const { kind, credentials, connectorId } = record;
  const named = new Set(credentials.map(({ id }) => id));
  const pages = await Array.fromAsync(pagesOf((page) => approver.credentials.listCredentials(page)));
  const tokens = pages.flatMap((page) => page.credentials).filter(({ id }) => named.has(id));
  const connector = (await allConnectors(approver)).find(({ id }) => id === connectorId);
  const isOwn =
    tokens.every(({ roles, label }) => /^(host|caller)$/.test(roles.join()) && label.startsWith(`${kind}@`)) &&
    (connector === undefined || (connector.kind === kind && connector.place.startsWith(`${user.name}@`)));
  if (isOwn) return;
  throw new CommandError(
    `${recordFile(kind, user)} names a token or connector that \`toolgate connect ${kind}\` did not make, so nothing was undone`,
    "compare it with `toolgate token list` and `toolgate connect --list`, correct it, then run the command again",
    exitCodes.failed,
  );
}

/** Restores the files, revokes the tokens, and unregisters the connector; returns what could not be undone. */
async function undoConnector(
  record: ConnectRecord,
  changes: readonly PlannedChange[],
  { user, approver }: { user: AgentUser; approver: ServerConnection },
): Promise<string[]> {
  const ofSystem = systemFilesOf(record.kind, user);
  applyChanges(changes, user);
  const { codex } = record;
  if (codex !== undefined) await editCodex({ program: codex.program, user }, codex.undo);
  // Only what is gone already may be missing at the service.
  for (const { id } of record.credentials)
    await unlessRefused(approver.credentials.revokeCredential({ id }), Code.NotFound);
  const { connectorId: id } = record;
  if (id !== "") await unlessRefused(approver.agents.unregisterConnector({ id }), Code.NotFound);
  writeRecord(record.kind, user, undefined);
  return asAgentUser(user, () => [...ofSystem, ...record.files].flatMap(leftIn));
}

function leftIn({ path, sha256, entries, original }: WrittenFile): string[] {
  const text = readIfExists(path);
  if (text === undefined) return [];
  if (entries === undefined)
    return digestOfText(text) === sha256 || original === null ? [`${path} was changed, and stays`] : [];
  return entries.some((entry) => hasEntry(path, text, entry)) ? [`${path} still has entries of the connector`] : [];
}
