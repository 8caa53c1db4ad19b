import { hash } from "node:crypto";
import { crc32 } from "node:zlib";
import { create, fromBinary, type JsonObject, type JsonValue, toBinary } from "@bufbuild/protobuf";
import { BackgroundEndedSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import {
  type AuditEntry,
  AuditEntrySchema,
  type DecisionRecord,
  DecisionRecordSchema,
  type PermissionEscalated,
  PermissionEscalatedSchema,
  type PermissionVoted,
  PermissionVotedSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type PermissionRequest, ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";

/** Throws unless the part is terminal. */
export function checkEnded(part: ToolPart): void {
  if (part.state.case === "completed" || part.state.case === "error") return;
  throw new Error(`call ${part.callId} cannot end as ${part.state.case ?? "nothing"}`);
}

/** Returns the message of the asks that are withdrawn with a call whose parent ends: the text of the call's error. */
export function withdrawalOf({ state }: ToolPart): string {
  return state.case === "error" ? state.value.error : "";
}

/** Returns the event that follows the end of a call that ran in the background; undefined for all other parts. */
export function backgroundEndOf({ background, callId, childSessionId, state, tool }: ToolPart) {
  if (!background || (state.case !== "completed" && state.case !== "error")) return undefined;
  const reason = state.case === "error" ? state.value.reason : ToolErrorReason.UNSPECIFIED;
  const value = create(BackgroundEndedSchema, { callId, tool, childSessionId, reason });
  return { case: "backgroundEnded", value } as const;
}

/** Returns the event of a vote that leaves its request open. */
export function votedEvent({ id: permissionId, sessionId, tool, votes }: PermissionRequest): PermissionVoted {
  return create(PermissionVotedSchema, { permissionId, sessionId, callId: tool?.callId ?? "", votes });
}

/** Returns the event of steps that a request has taken. */
export function escalatedEvent({ id, sessionId, tool, escalations }: PermissionRequest): PermissionEscalated {
  const callId = tool?.callId ?? "";
  return create(PermissionEscalatedSchema, { permissionId: id, sessionId, callId, escalations });
}

/** Returns a request with its deadline and its steps moved with the time of the store. */
export function postponed(request: PermissionRequest, by: number): PermissionRequest {
  const escalations = request.escalations.map((each) => ({ ...each, at: each.at + by }));
  return { ...request, expires: request.expires + by, escalations };
}

/** Reduces an ended part to its tombstone: the ids and the terminal state. */
export function tombstone({ state, ...part }: ToolPart): ToolPart {
  const { metadata: _, originalInput: __, ...names } = part;
  if (state.case === "completed") {
    const value = { ...state.value, input: {}, output: "", title: "", metadata: {}, attachments: [] };
    return { ...names, state: { case: "completed", value } };
  }
  if (state.case === "error") {
    const { metadata: _, ...value } = state.value;
    return { ...names, state: { case: "error", value: { ...value, input: {}, error: "" } } };
  }
  throw new Error(`call ${part.callId} is ${state.case ?? "nothing"}: only an ended call has a tombstone`);
}

/** Returns the part to emit once the input has been emitted; omits large inputs. */
export function withoutLargeInput(given: ToolPart): ToolPart {
  if (!isLarge(given.state.value?.input) && !isLarge(given.originalInput)) return given;
  const { originalInput: _, ...part } = given;
  const { state } = part;
  switch (state.case) {
    case "running":
      return { ...part, inputElided: true, state: { case: "running", value: { ...state.value, input: {} } } };
    case "completed":
      return { ...part, inputElided: true, state: { case: "completed", value: { ...state.value, input: {} } } };
    case "error":
      return { ...part, inputElided: true, state: { case: "error", value: { ...state.value, input: {} } } };
    default:
      return part;
  }
}

const maxRepeatedInputBytes = 16 * 1024;

/** Compares the JSON size of a value with the limit. A rough upper bound, computed for every event, is enough for most. */
function isLarge(input: JsonObject | undefined): boolean {
  if (input === undefined || roughSize(input) * 6 <= maxRepeatedInputBytes) return false;
  return Buffer.byteLength(JSON.stringify(input)) > maxRepeatedInputBytes;
}

/** Returns at least a sixth of the JSON's length: JSON encodes a character in at most six bytes. */
function roughSize(value: JsonValue): number {
  if (typeof value === "string") return value.length + 2;
  if (typeof value !== "object" || value === null) return 24;
  let size = 2;
  for (const [key, item] of Object.entries(value)) size += key.length + 4 + roughSize(item);
  return size;
}

/** Encodes a record once: its bytes for storage, and their digest for the hash chain. */
export function encodeDecision(record: DecisionRecord) {
  const content = toBinary(DecisionRecordSchema, record);
  return { content, sha256: hash("sha256", content, "hex") };
}

/** Computes the hash of a chain link, as the contract defines it; the Redis scripts compute the same. */
export function linkHash(previous: string, seq: number, time: number, sha256: string): string {
  return hash("sha1", [previous, seq, time, sha256].join("\n"), "hex");
}

/** Builds the contract's entry from a stored link. */
export function auditEntry(
  entry: Pick<AuditEntry, "time" | "rootSessionId" | "previous" | "hash" | "content"> & { seq: number },
): AuditEntry {
  const record = fromBinary(DecisionRecordSchema, entry.content);
  return create(AuditEntrySchema, { ...entry, seq: BigInt(entry.seq), record });
}

/** A record on which its checksum was not found: something else changed it. */
export class DamagedRecord extends Error {
  override name = "DamagedRecord";
}

/** Notes damage, so that it is logged and the store is no longer ready. */
export type NoteDamage = (damage: DamagedRecord) => unknown;

/** Returns what `read` returns; undefined for a damaged record, which is noted and left, so that work on the others goes on. */
export function unlessDamaged<T>(read: () => T, note: NoteDamage): T | undefined {
  try {
    return read();
  } catch (error) {
    if (!(error instanceof DamagedRecord)) throw error;
    note(error);
    return undefined;
  }
}

/** Returns a content with its checksum, as two columns store them. */
export function sealed<Content extends Uint8Array | string>(content: Content): [content: Content, crc: number] {
  return [content, crc32(content)];
}

/** Returns a content if it has its checksum; null is that of a record that an earlier version wrote. */
export function unsealed<Content extends Uint8Array | string>(
  content: Content,
  crc: number | null,
  what: string,
): Content {
  if (crc === null || crc32(content) === crc) return content;
  throw new DamagedRecord(`${what} is not what was written`);
}
