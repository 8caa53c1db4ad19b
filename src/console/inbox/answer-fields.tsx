import type { Question } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { answerHint, questionLabel } from "../../view/questions.ts";
import { visibleLines, visibleText } from "../parts/visible-text.ts";

/** An answer that a person is composing. */
export interface AnswerDraft {
  readonly chosen: readonly string[];
  /** Counts only while `isOwn` is set. */
  readonly text: string;
  readonly isOwn: boolean;
}

/** The draft of a question that has no answer yet. */
export const noAnswer: AnswerDraft = { chosen: [], text: "", isOwn: false };

/** The values that a draft sends. */
export function valuesOf({ chosen, text, isOwn }: AnswerDraft): string[] {
  return isOwn && text.trim() !== "" ? [...chosen, text.trim()] : [...chosen];
}

/** One question with its options and a field for the person's own words. */
export function AnswerFields({
  question,
  at,
  draft,
  isLocked,
  change,
}: {
  question: Question;
  at: number;
  draft: AnswerDraft;
  isLocked: boolean;
  change: (draft: AnswerDraft) => void;
}) {
  const { options, multiple, custom } = question;
  const kind = multiple ? "checkbox" : "radio";
  const name = `question-${at}`;
  const choose = (label: string, isChosen: boolean) => {
    const others = multiple ? draft.chosen.filter((each) => each !== label) : [];
    change({ ...draft, chosen: isChosen ? [...others, label] : others, isOwn: multiple && draft.isOwn });
  };
  const write = (text: string) =>
    change({ chosen: multiple ? draft.chosen : [], text, isOwn: text !== "" || draft.isOwn });
  return (
    <fieldset class="question" disabled={isLocked}>
      <legend>
        <span class="question-label">{questionLabel(question, at, visibleText)}</span>
        <span class="question-text" dir="auto">
          {visibleLines(question.question)}
        </span>
      </legend>
      <p class="hint" id={`${name}-hint`}>
        {capitalHint(question)}
      </p>
      {options.map(({ label, description }) => (
        <label key={label} class="option">
          <input
            type={kind}
            name={name}
            aria-describedby={`${name}-hint`}
            checked={draft.chosen.includes(label)}
            onChange={({ currentTarget }) => choose(label, currentTarget.checked)}
          />
          <span dir="auto">
            {visibleText(label)}
            {description !== "" && <small>{visibleText(description)}</small>}
          </span>
        </label>
      ))}
      {custom && options.length > 0 && (
        <label class="option">
          <input
            type={kind}
            name={name}
            checked={draft.isOwn}
            onChange={({ currentTarget }) =>
              change({ ...draft, chosen: multiple ? draft.chosen : [], isOwn: currentTarget.checked })
            }
          />
          <span>In my own words</span>
        </label>
      )}
      {custom && (options.length === 0 || draft.isOwn) && (
        <textarea
          aria-label={`${questionLabel(question, at, visibleText)}: in my own words`}
          maxLength={4_096}
          rows={2}
          value={draft.text}
          onInput={({ currentTarget }) => write(currentTarget.value)}
        />
      )}
      {kind === "radio" && (draft.chosen.length > 0 || (draft.isOwn && options.length > 0)) && (
        <button type="button" class="quiet clear" onClick={() => change(noAnswer)}>
          Clear this answer
        </button>
      )}
    </fieldset>
  );
}

function capitalHint(question: Question): string {
  const hint = answerHint(question);
  return `${hint.charAt(0).toUpperCase()}${hint.slice(1)}.`;
}
