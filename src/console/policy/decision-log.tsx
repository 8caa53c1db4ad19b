import { fromBinary } from "@bufbuild/protobuf";
import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import {
  type AuditEntry,
  DecisionKind,
  type DecisionRecord,
  DecisionRecordSchema,
  PermissionOutcome,
} from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { methodWords } from "../../view/people.ts";
import { momentOf } from "../../view/quantities.ts";
import { requesterWords } from "../../view/requester.ts";
import { settledText } from "../parts/settled.ts";
import { DecisionList as Judged } from "../parts/verdict.tsx";
import { visibleText } from "../parts/visible-text.ts";
import { useLoaded } from "../shell/load.ts";
import { ProblemText } from "../shell/page.tsx";
import { pathOf } from "../shell/route.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import { type Chain, checkChain } from "./chain.ts";

const shownAtOnce = 100;

/** The decisions of a session tree, newest first, with filters and the state of their chain. */
export function DecisionLog({ connection, sessionId }: { connection: ConsoleConnection; sessionId: string }) {
  const last = useRef<DecisionLogReader>(undefined);
  const log = useLoaded(async (signal) => {
    last.current = await readDecisions(connection, sessionId, last.current, signal);
    return last.current;
  }, []);
  const filter = useSignal<DecisionFilter>({ outcome: "", tool: "", principal: "" });
  const count = useSignal(shownAtOnce);
  if (log.problem !== "") return <ProblemText text={log.problem} />;
  if (log.value === undefined) return <p role="status">Loading…</p>;
  const { decisions, chain, isMore } = log.value;
  const wanted = decisions.filter(({ record }) => matchesFilter(record, filter.value)).toReversed();
  return (
    <>
      <ChainState chain={chain} />
      <Filters decisions={decisions} filter={filter.value} onChange={(next) => (filter.value = next)} />
      <div class="actions">
        <p class="hint" role="status">
          {wanted.length === decisions.length
            ? `${decisions.length} decisions, newest first`
            : `${wanted.length} of ${decisions.length} decisions, newest first`}
        </p>
        <button type="button" class="quiet" onClick={log.reload}>
          {isMore ? "Load newer ones" : "Check for newer ones"}
        </button>
      </div>
      <ol class="cards">
        {wanted.slice(0, count.value).map((decision) => (
          <DecisionCard key={String(decision.entry.seq)} decision={decision} />
        ))}
      </ol>
      {wanted.length > count.value && (
        <button type="button" onClick={() => (count.value += shownAtOnce)}>
          Show more
        </button>
      )}
    </>
  );
}

function ChainState({ chain }: { chain: Chain }) {
  if (chain.state === "unchecked") {
    return <p class="hint">This browser cannot check the hash chain. Run toolgate audit verify instead.</p>;
  }
  if (chain.state === "broken") {
    return (
      <p class="warning" role="alert">
        Record {String(chain.seq)} was changed: {chain.problem}. Do not trust it and later records; compare them with an
        export.
      </p>
    );
  }
  return (
    <p class="chain">
      <span class="dot" /> The hash chain is intact up to record {String(chain.seq)} <code>{chain.hash}</code>
    </p>
  );
}

function Filters({
  decisions,
  filter,
  onChange,
}: {
  decisions: readonly Decision[];
  filter: DecisionFilter;
  onChange: (filter: DecisionFilter) => void;
}) {
  const choices: Readonly<Record<keyof DecisionFilter, { title: string; values: readonly string[] }>> = {
    outcome: { title: "Outcome", values: Object.keys(outcomeFilters) },
    tool: { title: "Tool", values: namesOf(decisions.map(({ record }) => record.tool)) },
    principal: {
      title: "Principal",
      values: namesOf(decisions.flatMap(({ record }) => [record.principal, record.by])),
    },
  };
  return (
    <div class="pickers">
      {(["outcome", "tool", "principal"] as const).map((name) => (
        <label key={name} class="labelled">
          <span>{choices[name].title}</span>
          <select
            value={filter[name]}
            onChange={({ currentTarget }) => onChange({ ...filter, [name]: currentTarget.value })}
          >
            <option value="">all</option>
            {choices[name].values.map((value) => (
              <option key={value} value={value}>
                {visibleText(value)}
              </option>
            ))}
          </select>
        </label>
      ))}
    </div>
  );
}

function DecisionCard({ decision: { entry, record } }: { decision: Decision }) {
  const { principal, tool, sessionId, callId, decisions } = record;
  return (
    <li class="card">
      <p class="card-head">
        <b>{headline(record)}</b>
        <span class="time">{momentOf(entry.time)}</span>
      </p>
      <p class="soft">
        {tool === ""
          ? ""
          : `${visibleText(tool)}, called by ${requesterWords(record, visibleText)} (${visibleText(principal)}), `}
        {record.person && `${visibleText(record.by)} (${methodWords(record.method)}), `}
        record {String(entry.seq)},{" "}
        <a href={`#${callId === "" ? pathOf("sessions", sessionId) : pathOf("sessions", sessionId, callId)}`}>
          {visibleText(callId || sessionId)}
        </a>
      </p>
      {decisions.length > 0 && <Judged decisions={decisions} />}
    </li>
  );
}

function headline(record: Decision["record"]): string {
  const { kind, by, person, decisions, settled, grants, report, traffic, escalations } = record;
  if (kind === DecisionKind.SETTLED && settled !== undefined) return settledText(settled);
  if (kind === DecisionKind.REVOKED || kind === DecisionKind.CONFIRMED) {
    return `Grant ${kind === DecisionKind.REVOKED ? "revoked" : "confirmed"} by ${visibleText(person?.name || by)}: ${grants.map(({ text }) => visibleText(text)).join("; ")}`;
  }
  if (kind === DecisionKind.REPORTED) {
    return `${report?.failed ? "Failure" : "Result"} reported by ${visibleText(by)}${report?.late ? ", too late" : ""}`;
  }
  if (kind === DecisionKind.CONNECTED) {
    const hosts = traffic.map(({ host, port, sentBytes, receivedBytes }) => {
      return `${visibleText(host)}:${port} (${sentBytes} bytes sent, ${receivedBytes} received)`;
    });
    return `Used the network: ${hosts.join(", ")}`;
  }
  if (kind === DecisionKind.ESCALATED) {
    const names = escalations.flatMap(({ to, channels }) => [...to, ...channels]);
    return `Nobody settled it, so it also went to ${visibleText([...new Set(names)].join(", "))}`;
  }
  if (kind === DecisionKind.PEOPLE) return visibleText(decisions.map(({ reason }) => reason).join("; "));
  return headlines.get(kind) ?? "Decided";
}

const headlines = new Map<DecisionKind, string>([
  [DecisionKind.ALLOWED, "Ran"],
  [DecisionKind.DENIED, "Denied by a rule"],
  [DecisionKind.ASKED, "Asked"],
]);

function namesOf(names: readonly string[]): readonly string[] {
  return [...new Set(names)].filter((name) => name !== "").sort();
}

/** The selected decisions; an empty value selects all. */
interface DecisionFilter {
  readonly outcome: string;
  readonly tool: string;
  readonly principal: string;
}

/** The outcomeFilters of decisions by their name in the filter. */
const outcomeFilters: Readonly<Record<string, (record: DecisionRecord) => boolean>> = {
  ran: ({ kind }) => kind === DecisionKind.ALLOWED,
  denied: (record) => record.kind === DecisionKind.DENIED || settledAs(record, PermissionOutcome.DENIED),
  asked: ({ kind }) => kind === DecisionKind.ASKED,
  approved: (record) => settledAs(record, PermissionOutcome.ONCE, PermissionOutcome.ALWAYS),
  rejected: (record) => settledAs(record, PermissionOutcome.REJECT),
  expired: (record) => settledAs(record, PermissionOutcome.EXPIRED),
  edited: (record) => settledAs(record, PermissionOutcome.EDITED),
  reported: ({ kind }) => kind === DecisionKind.REPORTED,
  connected: ({ kind }) => kind === DecisionKind.CONNECTED,
  revoked: ({ kind }) => kind === DecisionKind.REVOKED,
  confirmed: ({ kind }) => kind === DecisionKind.CONFIRMED,
};

/** Returns true if a record matches the filter. A principal matches as caller and as approver. */
function matchesFilter(record: DecisionRecord, { outcome, tool, principal }: DecisionFilter): boolean {
  return (
    (outcome === "" || outcomeFilters[outcome]?.(record) === true) &&
    (tool === "" || record.tool === tool) &&
    (principal === "" || record.principal === principal || record.by === principal)
  );
}

function settledAs({ kind, settled }: DecisionRecord, ...wanted: readonly PermissionOutcome[]): boolean {
  return kind === DecisionKind.SETTLED && settled !== undefined && wanted.includes(settled.outcome);
}

/** A decision, decoded from the bytes that the hash chain covers. */
interface Decision {
  readonly entry: AuditEntry;
  readonly record: DecisionRecord;
}

/** The decisions of a session tree that are loaded, oldest first. */
interface DecisionLogReader {
  readonly decisions: readonly Decision[];
  readonly chain: Chain;
  readonly isMore: boolean;
}

const pageSize = 500;
/** The maximum to load at once; a button loads more. */
const maxAtOnce = 5_000;

/** Loads the decisions after those that are loaded. */
async function readDecisions(
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
