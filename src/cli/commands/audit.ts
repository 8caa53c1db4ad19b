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
    .argument("[file]", "the output of `audit export`, or - for stdin (default: the server's audit)")
    .option("--session <id>", "only the tree of this session")
    .addHelpText("after", verifyHelp)
    .action((file: string | undefined, options: { session?: string }) =>
      file === undefined
        ? withServer(context, command, "approver", (server, screen) =>
            verify(auditEntries(server, options.session), screen),
          )
        : withScreen(context, command, (screen) => verify(exported(file, screen.io), screen)),
    );
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

/** Verifies the chains; fails at the first broken link. */
async function verify(entries: AsyncIterable<AuditEntry>, screen: Screen): Promise<undefined> {
  const heads = new Map<string, AuditEntry>();
  let count = 0;
  for await (const entry of entries) {
    const problem = problemOf(entry, heads.get(entry.rootSessionId));
    if (problem !== undefined) throw broken(entry, problem);
    heads.set(entry.rootSessionId, entry);
    count += 1;
  }
  for (const [rootSessionId, { seq, hash }] of heads) {
    const head = { rootSessionId, seq: String(seq), hash };
    screen.write(
      screen.json ? `${JSON.stringify(head)}\n` : `${terminalLine(rootSessionId)}  ${seq}  ${terminalLine(hash)}\n`,
    );
  }
  screen.note(screen.paint.err("green", `✓ ${count} records in ${heads.size} chains are unchanged`));
}

/** Describes what is wrong with an entry. `before` is absent at the beginning of a chain and after records that were swept. */
function problemOf(entry: AuditEntry, before: AuditEntry | undefined): string | undefined {
  const { seq, time, previous, hash, content, record } = entry;
  if (before && seq !== before.seq + 1n)
    return `it follows ${before.seq}: the records between are missing, or it is out of order`;
  if (before && previous !== before.hash) return "it does not link to the previous record";
  if (!before && seq === 1n && previous !== "") return "it is the first record but names a previous one";
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
Prints the last number and hash of each chain. A chain that was rewritten from the beginning still verifies: store these hashes, or
exports, where those who can write to the store cannot, and compare.`;
