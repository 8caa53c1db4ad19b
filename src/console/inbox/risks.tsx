import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { riskKinds, riskLines } from "../../view/risks.ts";
import { visibleText } from "../parts/visible-text.ts";

/** The risks of a call, the heaviest first, with the commands, paths and addresses that cause them. */
export function Risks({ requests }: { requests: readonly PermissionRequest[] }) {
  const lines = riskLines(requests);
  if (lines.length === 0) return null;
  return (
    <section class="risks" aria-label="Risks">
      {lines.map(({ kind, owner, words, parts }) => (
        <p key={`${owner} ${words}`} data-kind={kind}>
          {owner !== "" && <code>{visibleText(owner)}</code>} <b>{words}</b>{" "}
          {parts.map((part) => (
            <code key={part}>{visibleText(part)}</code>
          ))}
        </p>
      ))}
    </section>
  );
}

/** The heaviest risk of a call in words, and the number of others. */
export function RiskMark({ requests }: { requests: readonly PermissionRequest[] }) {
  const [first, ...others] = riskKinds(requests);
  if (first === undefined) return null;
  return (
    <span class="risk-mark" data-kind={first.kind} title={others.map(({ words }) => words).join(", ")}>
      {first.words}
      {others.length > 0 && ` +${others.length}`}
    </span>
  );
}
