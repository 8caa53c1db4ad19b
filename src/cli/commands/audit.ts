import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { createInterface } from "node:readline";
import { equals, fromBinary, fromJsonString } from "@bufbuild/protobuf";
import type { Command } from "commander";
import {
  type AuditEntry,
  AuditEntrySchema,
  DecisionKindSchema,
  DecisionRecordSchema,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { withScreen, withServer } from "../command.ts";
import type { CliContext, CliProcess } from "../context.ts";
import { CommandError, exitCodes, UsageError } from "../failure/command-error.ts";
import type { Screen } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { auditEntries } from "../view/audit-entries.ts";
import { createReceiptCheck, readPeopleKeys } from "../view/receipts.ts";
import { momentOf, wordOf } from "../view/words.ts";

/** Defines `toolgate audit export` and `toolgate audit verify`. */
export function defineAudit(command: Command, context: CliContext): void {
  command
    .command("export")
    .description("write the audit as JSON lines, session tree by session tree")
    .option(
      "--session <id>",
      "only the tree of this session, which may be deleted (default: all trees, deleted ones included)",
    )
    .action((options: { session?: string }) =>
      withServer(context, command, "approver", async (server, screen) => {
        for await (const entry of auditEntries(server, options.session)) screen.emit(AuditEntrySchema, entry);
        return undefined;
      }),
    );
  command
    .command("verify")
    .description("recompute the chains and name the first record that was changed")
    .argument(
      "[file...]",
      "outputs of `audit export`, or files and posts of an [audit_export], or - for stdin (default: the server's audit)",
    )
    .option("--session <id>", "only the tree of this session")
    .option("--people <file>", "an output of `toolgate people --json`: passkeys that signed have to be theirs")
    .addHelpText("after", verifyHelp)
    .action((files: readonly string[], { session, people }: { session?: string; people?: string }) =>
      files.length === 0
        ? withServer(context, command, "approver", (server, screen) =>
            verify(auditEntries(server, session), people, screen),
          )
        : withScreen(context, command, (screen) => verify(exportedIn(files, screen.io), people, screen)),
    );
}

async function* exportedIn(files: readonly string[], io: CliProcess): AsyncGenerator<AuditEntry> {
  for (const file of files) yield* exported(file, io);
}

async function* exported(file: string, { stdin }: CliProcess): AsyncGenerator<AuditEntry> {
  const input = file === "-" ? stdin : createReadStream(file);
  let number = 0;
  for await (const line of createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY })) {
    number += 1;
    if (line.trim() === "") continue;
    try {
      yield fromJsonString(AuditEntrySchema, line);
    } catch (cause) {
      throw new UsageError(
        `${file} line ${number} is not an audit entry`,
        "use the output of `toolgate audit export`",
        {
          cause,
        },
      );
    }
  }
}

/** The read part of a chain: the hash of each record by its number, and records whose predecessor was not read before them. */
interface ChainSeen {
  hashes: Map<number, string>;
  loose: AuditEntry[];
}

/** Verifies the chains, whose records may be repeated and come from several files in any order; fails at the first broken link. */
async function verify(
  entries: AsyncIterable<AuditEntry>,
  people: string | undefined,
  screen: Screen,
): Promise<undefined> {
  const receipts = createReceiptCheck(people === undefined ? undefined : await readPeopleKeys(people));
  const chains = new Map<string, ChainSeen>();
  let count = 0;
  for await (const entry of entries) {
    const chain: ChainSeen = chains.get(entry.rootSessionId) ?? { hashes: new Map(), loose: [] };
    chains.set(entry.rootSessionId, chain);
    const problem = problemOf(entry) ?? repeatProblem(entry, chain) ?? (await receipts.problemOf(entry));
    if (problem !== undefined) throw broken(entry, problem);
    if (chain.hashes.has(Number(entry.seq))) continue;
    chain.hashes.set(Number(entry.seq), entry.hash);
    if (chain.hashes.get(Number(entry.seq) - 1) !== entry.previous) chain.loose.push(entry);
    count += 1;
  }
  for (const [rootSessionId, { hashes, loose }] of chains) {
    for (const [index, entry] of loose.toSorted((one, other) => Number(one.seq - other.seq)).entries()) {
      const before = hashes.get(Number(entry.seq) - 1);
      if (before === undefined && index > 0) throw broken(entry, "the records before it are missing");
      if (before !== undefined && before !== entry.previous)
        throw broken(entry, "it does not link to the previous record");
    }
    const seq = hashes.keys().reduce((last, next) => Math.max(last, next), 0);
    const head = { rootSessionId, seq: String(seq), hash: hashes.get(seq) ?? "" };
    screen.write(
      screen.json
        ? `${JSON.stringify(head)}\n`
        : `${terminalLine(rootSessionId)}  ${seq}  ${terminalLine(head.hash)}\n`,
    );
  }
  // What came before the first record that is left may have the receipt.
  const unproven = receipts.unproven().find(({ rootSessionId }) => chains.get(rootSessionId)?.hashes.has(1));
  if (unproven !== undefined)
    throw broken(unproven, "a passkey signed one of its votes, and no record has the receipt");
  for (const { person, fingerprint, count: signed } of receipts.signers.values())
    screen.note(`  ${terminalLine(person)}  ${signed} signed with the passkey ${fingerprint.slice(0, 16)}`);
  screen.note(screen.paint.err("green", `✓ ${count} records in ${chains.size} chains are unchanged`));
}

/** An export sends each record at least once; what it sends again is the same. */
function repeatProblem({ seq, hash }: AuditEntry, { hashes }: ChainSeen): string | undefined {
  const known = hashes.get(Number(seq));
  return known === undefined || known === hash ? undefined : "another record has the same number";
}

/** Describes what is wrong with an entry by itself. */
function problemOf({ seq, time, previous, hash, content, record }: AuditEntry): string | undefined {
  if (seq === 1n && previous !== "") return "it is the first record but names a previous one";
  const contentHash = createHash("sha256").update(content).digest("hex");
  const link = createHash("sha1").update([previous, seq, time, contentHash].join("\n")).digest("hex");
  if (link !== hash) return "its content, number or time was changed";
  if (record && !equals(DecisionRecordSchema, record, fromBinary(DecisionRecordSchema, content)))
    return "its readable form does not match its content";
  return undefined;
}

function broken({ rootSessionId, seq, time, record }: AuditEntry, problem: string): CommandError {
  const what = record ? `: ${wordOf(DecisionKindSchema, record.kind)}, call ${terminalLine(record.callId)}` : "";
  return new CommandError(
    `record ${seq} of ${terminalLine(rootSessionId)} (${momentOf(time)}${what}) is broken: ${problem}`,
    "do not trust it or any later record; compare with an earlier export",
    exitCodes.failed,
  );
}

const verifyHelp = `
Checks the signatures of passkeys too, and prints the keys; --people binds them to persons.
Prints the last number and hash of each chain. A chain that was rewritten from the beginning still verifies: store these hashes, or
exports, where those who can write to the store cannot, and compare.`;
