import { type ReadonlySignal, useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import { type AnswerOutcome, newReplyId, sendAnswer, sentWords, unsentWords } from "./answer.ts";

/** The state of sending the answer of a card. */
export interface Sending {
  readonly isSending: ReadonlySignal<boolean>;
  /** The reason why the last answer was not recorded; empty if there is none. */
  readonly problem: ReadonlySignal<string>;
  send(target: PermissionRequest, answer: AnswerOutcome): Promise<void>;
}

/** Sends answers one at a time; `onAnswered` gets the report of one that the service has recorded. */
export function useSending(connection: ConsoleConnection, onAnswered: (report: string) => void): Sending {
  const isSending = useSignal(false);
  const problem = useSignal("");
  // An answer that is sent again must count once.
  const unsent = useRef({ answer: "", replyId: "" });
  return {
    isSending,
    problem,
    async send(target, answer) {
      isSending.value = true;
      problem.value = "";
      const key = JSON.stringify(answer);
      if (unsent.current.answer !== key) unsent.current = { answer: key, replyId: newReplyId() };
      try {
        await sendAnswer(connection, target, answer, unsent.current.replyId);
        onAnswered(sentWords(answer));
      } catch (error) {
        problem.value = unsentWords(error);
      } finally {
        isSending.value = false;
      }
    },
  };
}
