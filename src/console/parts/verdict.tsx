import { PermissionAction, type PermissionDecision } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { ExplainPermissionResponse } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { PlanToolResponse } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { actionWord, decisionWords } from "../../view/decisions.ts";
import { Matches } from "../inbox/ask-reasons.tsx";
import { PermissionMark } from "../inbox/permission-mark.tsx";
import { DiffView } from "./diff-view.tsx";
import { Pre } from "./long-text.tsx";
import { visibleLines, visibleText } from "./visible-text.ts";

/** The plan of a call: its decision and effects, or its problem; announced to screen readers. */
export function PlanVerdict({ plan }: { plan: PlanToolResponse | undefined }) {
  return (
    <section class="verdict-box" role="status" aria-label="What would happen">
      {plan !== undefined && <Plan plan={plan} />}
    </section>
  );
}

function Plan({ plan: { action, decisions, asks, preview, problem } }: { plan: PlanToolResponse }) {
  const offers = asks.flatMap(({ offers }) => offers);
  return (
    <>
      {problem === undefined || decisions.length > 0 ? (
        <Answer action={action} />
      ) : (
        <p class="answer" data-action="deny">
          It would fail before it runs.
        </p>
      )}
      {problem !== undefined && <pre class="problem">{visibleLines(problem.message)}</pre>}
      {preview !== undefined && preview.diff !== "" && <DiffView diff={preview.diff} counts={preview} />}
      <DecisionList decisions={decisions} />
      {offers.length > 0 && (
        <>
          <h3>“Always” would offer</h3>
          <ul class="plain">
            {offers.map(({ id, text }, i) => (
              <li key={`${i} ${id}`}>{visibleText(text)}</li>
            ))}
          </ul>
        </>
      )}
    </>
  );
}

/** The rules' decisions on some patterns; announced to screen readers. */
export function RulesVerdict({ verdict }: { verdict: ExplainPermissionResponse | undefined }) {
  return (
    <section class="verdict-box" role="status" aria-label="Decision of the rules">
      {verdict !== undefined && (
        <>
          <Answer action={verdict.action} />
          <DecisionList decisions={verdict.decisions} />
        </>
      )}
    </section>
  );
}

function Answer({ action }: { action: PermissionAction }) {
  return (
    <p class="answer" data-action={actionWord(action)}>
      {answers.get(action)}
    </p>
  );
}

/** Each evaluated pattern with its decision and reason. */
export function DecisionList({ decisions }: { decisions: readonly PermissionDecision[] }) {
  return (
    <ul class="reasons">
      {decisions.map((decision, i) => (
        <li key={i} class="reason" data-action={actionWord(decision.action)}>
          <div class="reason-head">
            <PermissionMark kind={decision.permission} />
            <Pre text={visibleLines(decision.pattern)} look="reason-text" />
            <span class="verdict">{verdicts.get(decision.action)}</span>
          </div>
          <p class="reason-why">
            {decisionWords(decision, visibleText)}
            <Matches decision={decision} />
          </p>
        </li>
      ))}
    </ul>
  );
}

const answers = new Map<PermissionAction, string>([
  [PermissionAction.ALLOW, "Yes. It runs without asking."],
  [PermissionAction.ASK, "Only if someone approves it."],
  [PermissionAction.DENY, "No. It is denied without asking."],
]);

const verdicts = new Map<PermissionAction, string>([
  [PermissionAction.ALLOW, "allowed"],
  [PermissionAction.ASK, "needs approval"],
  [PermissionAction.DENY, "denied"],
]);
