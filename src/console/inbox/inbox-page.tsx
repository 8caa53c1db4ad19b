import { type Signal, useComputed, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { PermissionReply } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { filterCalls } from "../../view/ask-filter.ts";
import { callKeyOf, farewellMs } from "../../view/asks.ts";
import { createSessionNames } from "../parts/session-names.ts";
import { VirtualList } from "../parts/virtual-list.tsx";
import { isTyping } from "../shell/keys.ts";
import { Empty, lazyPage, type PageProps } from "../shell/page.tsx";
import { pathOf } from "../shell/route.ts";
import type { AnswerOutcome } from "./answer.ts";
import { AskCard } from "./ask-card.tsx";
import { type AskGroup, groupByCall } from "./ask-list.ts";
import { AskRow, askRowHeight } from "./ask-row.tsx";
import type { OutcomeProps } from "./outcome.tsx";

const Outcome = lazyPage<OutcomeProps>(async () => (await import("./outcome.tsx")).Outcome);

/** The waiting calls on the left, equal ones in one row; the selected one with its asks on the right. */
export function InboxPage({ connection, feed, route }: PageProps) {
  const names = useMemo(() => createSessionNames(connection), [connection]);
  const groups = useComputed(() => groupByCall(feed.asks.value));
  const filter = useSignal("");
  const rows = useComputed(() =>
    filterCalls(groups.value, filter.value, { requests: requestsOf, isOpen, nameOf: names.of }),
  );
  const [chosen] = route.chosen.value;
  const named = groupOf(rows.value, groups.value, chosen);
  // A call that asks again does so under another id, after an edit or while it runs.
  const last = useRef<{ id?: string; call?: string | undefined }>({});
  const again =
    named === undefined && chosen === last.current.id
      ? groups.value.find((one) => isOpen(one) && callOf(one) === last.current.call)
      : undefined;
  const group = named ?? again;
  useEffect(() => {
    if (named !== undefined && chosen !== undefined) last.current = { id: chosen, call: callOf(named) };
    choose(again);
  });
  const row = rows.value.findIndex((row) => row.some((one) => one === group));
  const place = useRef(0);
  useEffect(() => {
    if (row !== -1) place.current = row;
  });
  const report = useSignal("");
  useEffect(() => {
    // What is left to do stays until the next answer.
    if (!report.value.startsWith("Sent")) return;
    const timer = setTimeout(() => {
      report.value = "";
    }, farewellMs);
    return () => clearTimeout(timer);
  }, [report.value]);

  const choose = (wanted: AskGroup | undefined) => {
    if (wanted !== undefined) route.go(pathOf("requests", wanted.id), { replace: true });
  };
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      const { key, ctrlKey, metaKey, altKey, target } = event;
      if (ctrlKey || metaKey || altKey || isTyping(target)) return;
      if (key === "j") choose(rows.value[Math.min(place.current + 1, rows.value.length - 1)]?.[0]);
      if (key === "k") choose(rows.value[Math.max(place.current - 1, 0)]?.[0]);
      if (key !== "/") return;
      document.getElementById("filter")?.focus();
      event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  const equal = (rows.value[row] ?? []).filter((one) => one !== group);
  const waiting = groups.value.filter(isOpen).length;
  const found = rows.value.flat().filter(isOpen).length;
  return (
    <div class="split" data-chosen={chosen !== undefined}>
      <section class="pane list-pane" aria-label="Requests">
        <header class="pane-head">
          <h1>Inbox</h1>
          <p class="hint">
            {waiting === 0 ? "Nothing waiting" : `${filter.value === "" ? "" : `${found} of `}${waiting} waiting`}
            <span class="keys">
              {" "}
              <kbd>j</kbd> <kbd>k</kbd> to move
            </span>
          </p>
        </header>
        <Filter
          filter={filter}
          // What the filter hides is not answered by a key.
          onChange={() => route.go("/inbox", { replace: true })}
        />
        {groups.value.length === 0 ? (
          <Empty title={feed.liveness.value === "live" ? "All quiet" : "Connecting…"}>
            {feed.liveness.value === "live" && "Requests appear here when an agent needs approval."}
          </Empty>
        ) : rows.value.length === 0 ? (
          <Empty title="No request has all of these words" />
        ) : (
          <VirtualList
            items={rows.value}
            rowHeight={askRowHeight}
            label="Calls waiting for an answer"
            keyOf={([first]) => first?.id ?? ""}
            current={row}
            row={(row) => {
              const shown = row.find((one) => one === group) ?? row[0];
              return shown && <AskRow group={shown} count={row.length} isCurrent={shown === group} names={names} />;
            }}
          />
        )}
      </section>
      <section class="pane detail-pane" aria-label="Request">
        <p class="report" role="status" data-shown={report.value !== ""}>
          {report}
        </p>
        {group === undefined && chosen !== undefined && (
          <Outcome key={chosen} id={chosen} connection={connection} names={names} />
        )}
        {group !== undefined && (
          <AskCard
            key={group.id}
            group={group}
            equal={equal.flatMap(({ open }) => open.slice(0, 1))}
            connection={connection}
            names={names}
            drafts={feed.drafts}
            isAlone={chosen !== undefined}
            isLive={feed.liveness.value === "live"}
            onAnswered={(words, answer) => {
              report.value = words;
              const shown = groupOf(rows.value, groups.value, route.chosen.value[0]);
              // Stays on a call that was selected in the meantime.
              if (shown?.id === group.id) choose(nextOpen(rows.value.flat(), group, answer));
            }}
          />
        )}
      </section>
    </div>
  );
}

/** The field that filters the requests by words; `/` leads to it, and Escape back. */
function Filter({ filter, onChange }: { filter: Signal<string>; onChange: () => void }) {
  const set = (words: string) => {
    filter.value = words;
    onChange();
  };
  return (
    <input
      id="filter"
      type="search"
      aria-label="Filter"
      placeholder="Filter: words, agent:… session:… tool:… risk:…"
      autocomplete="off"
      spellcheck={false}
      value={filter}
      onInput={({ currentTarget }) => set(currentTarget.value)}
      onKeyDown={({ key, currentTarget }) => {
        if (key === "Escape") set("");
        if (key === "Escape" || key === "Enter") currentTarget.blur();
      }}
    />
  );
}

const requestsOf = ({ asks }: AskGroup) => asks.map(({ request }) => request);

const isOpen = ({ open }: AskGroup) => open.length > 0;

const callOf = ({ asks: [first] }: AskGroup) => first && callKeyOf(first.request);

/** The selected group, or the first one in the list if none is selected. */
function groupOf(
  rows: readonly (readonly AskGroup[])[],
  groups: readonly AskGroup[],
  id: string | undefined,
): AskGroup | undefined {
  if (id === undefined) return rows[0]?.[0];
  return groups.find((group) => group.id === id || group.asks.some(({ request }) => request.id === id));
}

/** The next open group after this one, otherwise the first one; none that the answer rejects too. */
function nextOpen(groups: readonly AskGroup[], group: AskGroup, answer: AnswerOutcome): AskGroup | undefined {
  const at = groups.findIndex(({ id }) => id === group.id);
  const others = [...groups.slice(at + 1), ...groups.slice(0, Math.max(at, 0))];
  return others.find((one) => isOpen(one) && !isRejectedWith(one, group, answer));
}

/** Checks if a group is rejected together with another one. */
function isRejectedWith({ asks }: AskGroup, group: AskGroup, answer: AnswerOutcome): boolean {
  if (answer.reply !== PermissionReply.REJECT) return false;
  const [shown] = requestsOf(group);
  return asks.some(
    ({ request: { id, agent, ancestry } }) =>
      answer.equal?.some((one) => one.id === id) ||
      (answer.all === "agent" && agent === shown?.agent) ||
      (answer.all === "session" && ancestry.includes(shown?.sessionId ?? "")),
  );
}
