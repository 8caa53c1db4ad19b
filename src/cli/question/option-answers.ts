import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { answerHint, questionLabel } from "../../view/questions.ts";
import type { ReplyAnswer } from "../connection/send-reply.ts";
import { UsageError } from "../failure/failure.ts";
import { terminalLine, terminalSafe } from "../terminal/terminal-safe.ts";
import { parseAnswer } from "./parse-answer.ts";

/** Reads the options `--answer` as answers to the questions of a request, one for each; undefined for a request without questions. */
export function answersFor(
  ask: PermissionRequest | undefined,
  typed: readonly string[] | undefined,
): ReplyAnswer["answers"] {
  if (ask === undefined) return typed?.map((text) => ({ values: text === "" ? [] : [text] }));
  const { question: questions } = ask;
  if (questions.length === 0) {
    if (typed === undefined) return undefined;
    throw new UsageError(
      `${terminalSafe(ask.id)} asks no question`,
      "leave --answer out, and answer once, always or reject",
    );
  }
  if (typed?.length !== questions.length) {
    const labels = questions.map((each, i) => questionLabel(each, i, terminalLine)).join(", ");
    throw new UsageError(
      `${terminalSafe(ask.id)} asks ${questions.length} (${labels}), and ${typed?.length ?? 0} came`,
      "give --answer once for each question, in this order; reject dismisses them",
    );
  }
  return questions.map((each, i) => {
    const parsed = parseAnswer(each, typed[i] ?? "");
    if ("values" in parsed) return parsed;
    throw new UsageError(
      `--answer ${i + 1} (${questionLabel(each, i, terminalLine)}): ${parsed.problem}`,
      answerHint(each),
    );
  });
}
