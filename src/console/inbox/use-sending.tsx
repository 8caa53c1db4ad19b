import { type ReadonlySignal, useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { AnswerMethod, type PasskeyReceipt, Shown } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { failureText } from "../shell/load.ts";
import { ProblemText } from "../shell/page.tsx";
import type { ConsoleConnection } from "../stream/connection.ts";
import {
  type AnswerOutcome,
  grantEnd,
  newReplyId,
  reachService,
  sendAnswer,
  sentWords,
  unsentWords,
} from "./answer.ts";

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
  // An answer that is sent again must count once, so it ends when the first one did.
  const unsent = useRef<{ answer: string; replyId: string; expires?: number }>({ answer: "", replyId: "" });
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
      const given = unsent.current;
      try {
        let headers = await reachService(connection, signal);
        given.expires ??= grantEnd(answer, headers);
        const { replyId, expires } = given;
        let receipt: PasskeyReceipt | undefined;
        if (needsPasskey(target) && answer.reply !== PermissionReply.REJECT) {
          receipt = await signed(connection, target, answer, expires);
          headers = await reachService(connection, signal);
        }
        if (signal.aborted) return;
        own.isReached = true;
        const sent = { replyId, expires, headers, signal, shown, receipt };
        const left = await sendAnswer(connection, target, answer, sent);
        if (signal.aborted) return;
        isSending.value = false;
        onAnswered(sentWords(answer, left), answer);
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof NotSigned) giveUp(`Not sent: ${error.message}`);
        else giveUp(own.isReached ? unsentWords(error) : "Not sent: no connection to the service. Try again.");
      }
    },
    withdraw() {
      const { stop, isReached } = attempt.current;
      stop.abort();
      giveUp(
        isReached
          ? "Withdrawn. If the service had it before, this request shows it."
          : "Not sent: you withdrew the answer.",
      );
    },
  };
}

/** Checks if an approval of a request has to be signed. */
export const needsPasskey = ({ need }: PermissionRequest) => need?.method === AnswerMethod.PASSKEY;

class NotSigned extends Error {}

/** Loads what signs answers, and lets the person sign this one. */
async function signed(
  connection: ConsoleConnection,
  target: PermissionRequest,
  answer: AnswerOutcome,
  expires: number,
): Promise<PasskeyReceipt> {
  try {
    const { signAnswer } = await import("../people/sign.ts");
    return await signAnswer(connection, target, answer, expires);
  } catch (error) {
    throw new NotSigned(failureText(error));
  }
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
