import type { PermissionSettled } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { questionLabel } from "../../view/questions.ts";
import type { SettledAsk } from "../parts/settled.ts";
import { visibleLines, visibleText } from "../parts/visible-text.ts";

/** The questions of a settled request, each with the answer that it got. */
export function AskedQuestions({ request, settled }: { request: PermissionRequest; settled: SettledAsk | undefined }) {
  const answers: PermissionSettled["answers"] = settled === undefined || settled === "unseen" ? [] : settled.answers;
  return (
    <dl class="asked">
      {request.question.map((question, at) => (
        <div key={at}>
          <dt dir="auto">
            <span class="question-label">{questionLabel(question, at, visibleText)}</span>
            <span class="question-text">{visibleLines(question.question)}</span>
          </dt>
          {answers.length > 0 && <dd dir="auto">{answerWords(answers[at]?.values ?? [])}</dd>}
        </div>
      ))}
    </dl>
  );
}

function answerWords(values: readonly string[]): string {
  return values.length === 0 ? "No answer" : values.map(visibleLines).join(", ");
}
