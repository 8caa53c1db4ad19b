import { fromBinary } from "@bufbuild/protobuf";
import {
  type AuditEntry,
  type DecisionRecord,
  DecisionRecordSchema,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import { type Chain, checkChain } from "./chain.ts";

/** A decision, decoded from the bytes that the hash chain covers. */
export interface Decision {
  readonly entry: AuditEntry;
  readonly record: DecisionRecord;
}

/** The decisions of a session tree that are loaded, oldest first. */
export interface DecisionLogReader {
  readonly decisions: readonly Decision[];
  readonly chain: Chain;
  readonly isMore: boolean;
}

const pageSize = 500;
/** The maximum to load at once; a button loads more. */
const maxAtOnce = 5_000;

/** Loads the decisions after those that are loaded. */
export async function readDecisions(
  { permissions }: Pick<ConsoleConnection, "permissions">,
  sessionId: string,
  before: DecisionLogReader | undefined,
  signal: AbortSignal,
): Promise<DecisionLogReader> {
  const known = before?.decisions ?? [];
  const read: Decision[] = [];
  for (let isMore = true; ; ) {
    const afterSeq = (read.at(-1) ?? known.at(-1))?.entry.seq ?? 0n;
    const { entries, end } = await permissions.listDecisions({ sessionId, afterSeq, pageSize }, { signal });
    read.push(...entries.map((entry) => ({ entry, record: fromBinary(DecisionRecordSchema, entry.content) })));
    isMore = !end;
    if (isMore && read.length < maxAtOnce) continue;
    const fresh = read.map(({ entry }) => entry);
    const chain = before?.chain.state === "broken" ? before.chain : await checkChain(fresh, known.at(-1)?.entry);
    return { decisions: [...known, ...read], chain, isMore };
  }
}
