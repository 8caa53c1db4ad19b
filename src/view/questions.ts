import type { Question } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { TextFilter } from "./outcomes.ts";

/** Tests for a request that asks a person questions: only answers settle it, no approval. */
export function asksQuestions({ question }: Pick<PermissionRequest, "question">): boolean {
  return question.length > 0;
}

/** The label of a question: its header, otherwise its number. */
export function questionLabel({ header }: Question, at: number, filter: TextFilter): string {
  return header === "" ? `Question ${at + 1}` : filter(header);
}

/** Ways to answer a question, such as `choose one, or write an answer`. */
export function answerHint({ options, multiple, custom }: Question): string {
  if (options.length === 0) return "write an answer";
  return `choose one${multiple ? " or several" : ""}${custom ? ", or write an answer" : ""}`;
}
