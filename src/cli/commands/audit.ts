import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { createInterface } from "node:readline";
import { equals, fromBinary, fromJsonString } from "@bufbuild/protobuf";
import type { Command } from "commander";
import {
  AnswerMethod,
  AnswerMethodSchema,
  type ApprovalNeed,
  ApprovalNeedSchema,
  type AuditEntry,
  AuditEntrySchema,
  DecisionKind,
  DecisionKindSchema,
  type DecisionRecord,
  DecisionRecordSchema,
  type PasskeyReceipt,
  PermissionOutcome,
  type Vote,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { PersonRecordSchema } from "../../../gen/opencode/tool/v1/person_service_pb.ts";
import { passkeyPlace, verifyReceipt } from "../../core/passkey-receipt.ts";
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
  const fix = "use the output of `toolgate audit export`";
  let number = 0;
  let isEmpty = true;
  for await (const line of createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY })) {
    number += 1;
    if (line.trim() === "") continue;
    isEmpty = false;
    try {
      yield fromJsonString(AuditEntrySchema, line);
    } catch (cause) {
      throw new UsageError(`${file} line ${number} is not an audit entry`, fix, { cause });
    }
  }
  // As when the export failed.
  if (isEmpty) throw new UsageError(`${file} has no records, so nothing was verified`, fix);
}

/** The read part of a chain: the hash of each record by its number, and records whose predecessor was not read before them. */
interface ChainSeen {
  hashes: Map<number, string>;
  loose: AuditEntry[];
}

/** Verifies the chains, whose records may be repeated and come from several files in any order; fails at the first broken link. */
async function verify(entries: AsyncIterable<AuditEntry>, people: string | undefined, screen: Screen): Promise<void> {
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
    screen.result(head, () => [`${terminalLine(rootSessionId)}  ${seq}  ${terminalLine(head.hash)}`]);
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

/** Public keys of passkeys, by person and credential. */
type KeysOfPeople = ReadonlyMap<string, string>;

/** Reads the passkeys of persons from an output of `toolgate people --json`. */
async function readPeopleKeys(file: string): Promise<KeysOfPeople> {
  const keys = new Map<string, string>();
  try {
    for await (const line of createInterface({ input: createReadStream(file) })) {
      const { id, passkeys } = fromJsonString(PersonRecordSchema, line, { ignoreUnknownFields: true });
      for (const passkey of passkeys) keys.set(`${id} ${passkey.id}`, fingerprintOf(passkey.publicKey));
    }
  } catch (cause) {
    const fix = "write it with `toolgate people --json`, and store it where others cannot write";
    throw new UsageError(`${file} is not a list of persons`, fix, { cause });
  }
  return keys;
}

/** A person's key that signed answers, and their number. */
interface SignedBy {
  readonly person: string;
  readonly fingerprint: string;
  count: number;
}

/**
 * Creates the check of the votes of an audit: that they are what was needed, and their receipts, each one by itself, then that each vote
 * with a passkey has one.
 */
function createReceiptCheck(people: KeysOfPeople | undefined) {
  const needs = new Map<string, ApprovalNeed>();
  const proven = new Set<string>();
  const claimed = new Map<string, AuditEntry>();
  const signers = new Map<string, SignedBy>();

  /** Describes what is wrong with the receipt of an entry; undefined for a good one, and for an entry that needs none. */
  async function problemOf(record: DecisionRecord): Promise<string | undefined> {
    if (record.settled?.settledWith) return undefined;
    const { receipt, method, person } = record;
    if (receipt === undefined)
      return method === AnswerMethod.PASSKEY ? "it says that a passkey signed it, and has no receipt" : undefined;
    const wrong = contradictionOf(record, receipt);
    if (wrong !== undefined) return `its receipt is for ${wrong}`;
    const signature = await verifyReceipt(receipt, placeOf(receipt), 0).then(
      () => undefined,
      (cause: unknown) => `its receipt is not valid: ${cause instanceof Error ? cause.message : cause}`,
    );
    if (signature !== undefined) return signature;
    const fingerprint = fingerprintOf(receipt.publicKey);
    const key = `${person?.id} ${Buffer.from(receipt.credentialId).toString("base64url")}`;
    if (people !== undefined && people.get(key) !== fingerprint)
      return `its key ${fingerprint.slice(0, 16)} is no passkey of ${person?.name || person?.id} in --people`;
    const signer = signers.get(key) ?? { person: person?.name || (person?.id ?? ""), fingerprint, count: 0 };
    signers.set(key, { ...signer, count: signer.count + 1 });
    return undefined;
  }

  /** Describes how the votes of an entry fall short of the need that was stored with the request. */
  function shortfallOf(record: DecisionRecord): string | undefined {
    for (const { permissionId, need } of record.needs) {
      const known = needs.get(permissionId) ?? need;
      if (need === undefined || known === undefined || !equals(ApprovalNeedSchema, known, need)) return otherNeed;
      needs.set(permissionId, need);
    }
    const isAnswer = record.kind === DecisionKind.VOTED || record.kind === DecisionKind.SETTLED;
    const need = isAnswer ? needs.get(record.permissionIds[0] ?? "") : undefined;
    if (need === undefined) return undefined;
    return isMetBy(record, need) ? undefined : `the request needs ${wordsOf(need)}, and its votes are not that`;
  }

  return {
    signers,
    async problemOf(entry: AuditEntry): Promise<string | undefined> {
      const record = fromBinary(DecisionRecordSchema, entry.content);
      const problem = shortfallOf(record) ?? (await problemOf(record));
      const own = voteOf(record);
      if (problem === undefined && record.receipt && own) proven.add(keyOf(record, own));
      for (const vote of record.settled?.votes ?? [])
        if (vote.method === AnswerMethod.PASSKEY) claimed.set(keyOf(record, vote), entry);
      return problem;
    },
    /** Returns entries with a vote whose receipt no entry has. */
    unproven: () => [...claimed].flatMap(([key, entry]) => (proven.has(key) ? [] : entry)),
  };
}

const otherNeed = "what has to be approved by whom is not what the records before it say";

const wordsOf = ({ all, method }: ApprovalNeed) =>
  `${Math.max(...all.map(({ approve }) => approve))} approvals${method === 0 ? "" : ` by ${wordOf(AnswerMethodSchema, method)} at least`}`;

/** Checks approvals by what a record has: the proofs of the persons, and their number where they settled the request. */
function isMetBy({ vote, settled, method }: DecisionRecord, need: ApprovalNeed): boolean {
  const { outcome = PermissionOutcome.UNSPECIFIED, votes = [] } = settled ?? {};
  const approving = (vote ? [vote] : votes).filter((each) => each.outcome !== PermissionOutcome.REJECT);
  if (approving.some((each) => each.method < need.method)) return false;
  if (outcome === PermissionOutcome.EDITED) return method >= need.method || settled?.settledWith !== "";
  if (outcome !== PermissionOutcome.ONCE && outcome !== PermissionOutcome.ALWAYS) return true;
  const persons = new Set(approving.map(({ person }) => person?.id));
  return need.all.every(({ approve }) => persons.size >= approve);
}

/** Returns the vote that a record adds: its own one, or the one that settled. */
function voteOf({ vote, settled, person }: DecisionRecord): Vote | undefined {
  return vote ?? settled?.votes.find((each) => each.person?.id === person?.id);
}

const keyOf = ({ permissionIds }: DecisionRecord, { person, time }: Vote) =>
  [permissionIds[0], person?.id, time].join(" ");

/** Says what a receipt is for, where that is not the answer of the record. */
function contradictionOf(record: DecisionRecord, { answer }: PasskeyReceipt): string | undefined {
  const { permissionIds, person, settled } = record;
  const vote = settled?.outcome === PermissionOutcome.EDITED ? undefined : voteOf(record);
  if (answer === undefined || answer.permissionId !== permissionIds[0]) return "another permission request";
  if (answer.personId !== person?.id) return "another person";
  if (answer.outcome !== (vote?.outcome ?? settled?.outcome)) return "another outcome";
  if (answer.reason !== (vote?.reason ?? settled?.reason)) return "another reason";
  if (vote === undefined) return undefined;
  if (answer.viewDigest !== vote.viewDigest) return "another view of the request";
  const isSameOffer = answer.offerId === vote.offerId && answer.expires === vote.expires && answer.times === vote.times;
  if (!isSameOffer) return "another offer";
  return undefined;
}

/** The page on which a receipt was made; the signature covers it. */
function placeOf({ clientDataJson }: PasskeyReceipt) {
  const { origin }: { origin?: unknown } = JSON.parse(Buffer.from(clientDataJson).toString() || "{}");
  return passkeyPlace(typeof origin === "string" && URL.canParse(origin) ? origin : undefined) ?? noPlace;
}

const noPlace = { origin: "https://invalid", rpId: "invalid" };

const fingerprintOf = (key: Uint8Array) => createHash("sha256").update(key).digest("hex");
