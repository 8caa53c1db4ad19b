import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { farewellMs } from "../../view/asks.ts";
import { createSessionNames } from "../parts/session-names.ts";
import { VirtualList } from "../parts/virtual-list.tsx";
import { isTyping } from "../shell/keys.ts";
import { Empty, type PageProps } from "../shell/page.tsx";
import { pathOf } from "../shell/route.ts";
import { AskCard } from "./ask-card.tsx";
import { type AskGroup, groupByCall } from "./ask-list.ts";
import { AskRow, askRowHeight } from "./ask-row.tsx";
import { Outcome } from "./outcome.tsx";

/** The waiting calls on the left, the selected one with its asks on the right. */
export function InboxPage({ connection, feed, route }: PageProps) {
  const names = useMemo(() => createSessionNames(connection), [connection]);
  const groups = useComputed(() => groupByCall(feed.asks.value));
  const isChosen = route.chosen.value.length > 0;
  const place = useRef(0);
  const [chosen] = route.chosen.value;
  const current = indexOf(groups.value, chosen);
  useEffect(() => {
    if (current !== -1) place.current = current;
  });
  const report = useSignal("");
  useEffect(() => {
    if (report.value === "") return;
    const timer = setTimeout(() => {
      report.value = "";
    }, farewellMs);
    return () => clearTimeout(timer);
  }, [report.value]);

  const choose = (index: number) => {
    const group = groups.value[index];
    if (group !== undefined) route.go(pathOf("requests", group.id), { replace: true });
  };
  useEffect(() => {
    const press = ({ key, ctrlKey, metaKey, altKey, target }: KeyboardEvent) => {
      if (ctrlKey || metaKey || altKey || isTyping(target)) return;
      if (key === "j") choose(Math.min(place.current + 1, groups.value.length - 1));
      if (key === "k") choose(Math.max(place.current - 1, 0));
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  const group = groups.value[current];
  const isStillShown = (id: string) => groups.value[indexOf(groups.value, route.chosen.value[0])]?.id === id;
  const waiting = groups.value.filter(({ open }) => open.length > 0).length;
  return (
    <div class="split" data-chosen={isChosen}>
      <section class="pane list-pane" aria-label="Requests">
        <header class="pane-head">
          <h1>Inbox</h1>
          <p class="hint">
            {waiting === 0 ? "Nothing waiting" : `${waiting} waiting`}
            <span class="keys">
              {" "}
              <kbd>j</kbd> <kbd>k</kbd> to move
            </span>
          </p>
        </header>
        {groups.value.length === 0 ? (
          <Empty title={feed.liveness.value === "live" ? "All quiet" : "Connecting…"}>
            {feed.liveness.value === "live" && "Requests appear here when an agent needs approval."}
          </Empty>
        ) : (
          <VirtualList
            items={groups.value}
            rowHeight={askRowHeight}
            label="Calls waiting for an answer"
            keyOf={({ id }) => id}
            current={current}
            row={(item, index) => <AskRow group={item} isCurrent={index === current} names={names} />}
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
            connection={connection}
            names={names}
            drafts={feed.drafts}
            isAlone={isChosen}
            isLive={feed.liveness.value === "live"}
            onAnswered={(words) => {
              report.value = words;
              const next = nextOpen(groups.value, group.id);
              // Stays on a call that was selected in the meantime.
              if (next !== -1 && isStillShown(group.id)) choose(next);
            }}
          />
        )}
      </section>
    </div>
  );
}

/** The index of the selected group, or of the first one if none is selected; -1 if it is not in the list. */
function indexOf(groups: readonly AskGroup[], id: string | undefined): number {
  if (id === undefined) return Math.min(0, groups.length - 1);
  return groups.findIndex((group) => group.id === id || group.asks.some(({ request }) => request.id === id));
}

/** The index of the next open group after this one, otherwise of the first one; -1 if none is open. */
function nextOpen(groups: readonly AskGroup[], id: string): number {
  const isOpen = (group: AskGroup) => group.id !== id && group.open.length > 0;
  const at = groups.findIndex((group) => group.id === id);
  const after = groups.findIndex((group, index) => index > at && isOpen(group));
  return after === -1 ? groups.findIndex(isOpen) : after;
}
