import { timeLeft } from "../../view/quantities.ts";
import { requesterWords } from "../../view/requester.ts";
import { callSummary } from "../../view/view-lines.ts";
import type { SessionNames } from "../parts/session-names.ts";
import { isApproved, settledText } from "../parts/settled.ts";
import { shortId } from "../parts/short-id.tsx";
import { visibleText } from "../parts/visible-text.ts";
import { useNow } from "../shell/now.ts";
import { pathOf } from "../shell/route.ts";
import type { AskGroup } from "./ask-list.ts";
import { kindsOf, PermissionMark } from "./permission-mark.tsx";
import { RiskMark } from "./risks.tsx";

/** All rows have this height, so that the list can be virtual. */
export const askRowHeight = 92;

/** A waiting call on three lines: kinds and time left, request, agent and session. Equal calls share a row with their number. */
export function AskRow({
  group,
  count,
  isCurrent,
  names,
}: {
  group: AskGroup;
  count: number;
  isCurrent: boolean;
  names: SessionNames;
}) {
  const now = useNow();
  const { asks, open } = group;
  const [first] = asks;
  if (first === undefined) return null;
  const { sessionId, expires } = first.request;
  const settled = open.length === 0 ? first.settled : undefined;
  return (
    <a
      class="ask-row"
      href={`#${pathOf("requests", group.id)}`}
      aria-current={isCurrent ? "true" : undefined}
      data-settled={settled === undefined ? undefined : isApproved(settled) ? "approved" : "ended"}
    >
      <span class="ask-row-head">
        {count > 1 && (
          <b class="count">
            ×{count}
            <span class="unseen"> equal requests</span>
          </b>
        )}
        {settled === undefined && <RiskMark requests={open} />}
        <span class="ask-row-marks">
          {kindsOf(asks).map((kind) => (
            <PermissionMark key={kind} kind={kind} />
          ))}
        </span>
        <span class={expires - now < 60_000 ? "time urgent" : "time"}>
          {settled === undefined ? timeLeft(expires - now) : ""}
        </span>
      </span>
      <span class="ask-row-what mono">{settled === undefined ? requestLine(group) : settledText(settled)}</span>
      <small class="ask-row-who">
        <b>{requesterWords(first.request, visibleText)}</b> ·{" "}
        {names.of(sessionId) === sessionId ? shortId(sessionId) : names.of(sessionId)}
      </small>
    </a>
  );
}

/** The command of a call on one line, otherwise its tool and input. */
export function requestLine({ asks }: AskGroup): string {
  const requests = asks.map(({ request }) => request);
  const request = requests.find(({ preview }) => preview?.command) ?? requests[0];
  return request === undefined ? "" : visibleText(callSummary(request).slice(0, 300));
}
