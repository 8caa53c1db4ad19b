import { type ReadonlySignal, useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { Shown } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { ProblemText } from "../shell/page.tsx";
import type { ConsoleConnection } from "../stream/connection.ts";
import { type AnswerOutcome, newReplyId, reachService, sendAnswer, sentWords, unsentWords } from "./answer.ts";

/** The state of sending the answer of a card. */
export interface Sending {
  readonly isSending: ReadonlySignal<boolean>;
  /** The reason why the last answer was not recorded; empty if there is none. */
  readonly problem: ReadonlySignal<string>;
  send(target: PermissionRequest, answer: AnswerOutcome, shown?: Shown): Promise<void>;
  /** Gives up the answer that is being sent. */
  withdraw(): void;
}

/** Sends answers one at a time; `onAnswered` gets the report of one that the service has recorded. */
export function useSending(
  connection: ConsoleConnection,
  onAnswered: (report: string, answer: AnswerOutcome) => void,
): Sending {
  const isSending = useSignal(false);
  const problem = useSignal("");
  // An answer that is sent again must count once.
  const unsent = useRef({ answer: "", replyId: "" });
  const attempt = useRef({ stop: new AbortController(), isReached: false });

  function giveUp(words: string): void {
    problem.value = words;
    isSending.value = false;
  }

  return {
    isSending,
    problem,
    async send(target, answer, shown = Shown.WHOLE) {
      isSending.value = true;
      problem.value = "";
      const key = JSON.stringify(answer);
      if (unsent.current.answer !== key) unsent.current = { answer: key, replyId: newReplyId() };
      const own = { stop: new AbortController(), isReached: false };
      attempt.current = own;
      const { signal } = own.stop;
      const { replyId } = unsent.current;
      try {
        const headers = await reachService(connection, signal);
        own.isReached = true;
        await sendAnswer(connection, target, answer, { replyId, headers, signal, shown });
        isSending.value = false;
        onAnswered(sentWords(answer), answer);
      } catch (error) {
        if (signal.aborted) return;
        giveUp(own.isReached ? unsentWords(error) : "Not sent: no connection to the service. Try again.");
      }
    },
    withdraw() {
      const { stop, isReached } = attempt.current;
      stop.abort();
      giveUp(
        isReached
          ? "Withdrawn. If the service had received the answer before, this request shows it."
          : "Not sent: you withdrew the answer.",
      );
    },
  };
}

/** The state of an answer that is being sent, with the way to withdraw it, or the reason why it was not recorded. */
export function SendingState({ sending: { isSending, problem, withdraw } }: { sending: Sending }) {
  return (
    <>
      <ProblemText text={problem.value} />
      {isSending.value && (
        <div class="sending">
          <p class="hint" role="status">
            Sending…
          </p>
          <button type="button" onClick={withdraw}>
            Withdraw
          </button>
        </div>
      )}
    </>
  );
}
