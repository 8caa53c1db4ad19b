import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { PermissionReply, type PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { isSend, isTyping } from "../shell/keys.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import type { AnswerOutcome } from "./answer.ts";
import { AnswerFields, noAnswer, valuesOf } from "./answer-fields.tsx";
import type { AskFeed } from "./ask-feed.ts";
import { RejectForm } from "./reject-form.tsx";
import { SendingState, useSending } from "./use-sending.tsx";

/** The questions of a request with the fields of their answers. Only its own button, or Ctrl and Enter, sends them. */
export function AnswerForm({
  request,
  drafts: stored,
  armed,
  isLive,
  connection,
  onAnswered,
  children,
}: {
  request: PermissionRequest;
  /** The drafts of all requests. */
  drafts: AskFeed["drafts"];
  /** True once the card has been visible for a moment. */
  armed: boolean;
  /** False while the page may miss changes; then nothing can be answered. */
  isLive: boolean;
  connection: ConsoleConnection;
  onAnswered: (report: string, answer: AnswerOutcome) => void;
  /** Shown between the questions and the buttons. */
  children: ComponentChildren;
}) {
  const { question: questions } = request;
  const drafts = useSignal(stored.get(request.id) ?? questions.map(() => noAnswer));
  const isDismissing = useSignal(false);
  const form = useRef<HTMLFormElement>(null);
  const sending = useSending(connection, onAnswered);
  const { isSending, send } = sending;
  const mayAnswer = connection.may("approver", "admin");
  const answers = drafts.value.map((draft) => ({ values: valuesOf(draft) }));
  const left = answers.filter(({ values }) => values.length === 0).length;
  const isPart = left > 0 && left < questions.length;
  const isReady = armed && !isSending.value;
  const canSend = isReady && isLive && left < questions.length;
  const answer = async () => {
    if (canSend) await send(request, { reply: PermissionReply.ONCE, answers });
  };
  const dismiss = async (outcome: AnswerOutcome) => {
    if (isReady) await send(request, outcome);
  };
  const openDismissal = (isOpen: boolean) => {
    isDismissing.value = isOpen;
  };

  // At once: what the page shows as ready must take a key.
  useLayoutEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (!mayAnswer || !form.current?.checkVisibility()) return;
      if (event.key === "Escape") openDismissal(false);
      if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || isTyping(event.target)) return;
      if (isDismissing.value || !["o", "r"].includes(event.key)) return;
      // The key that opens a form must not be typed into it.
      event.preventDefault();
      if (event.key === "r") openDismissal(isReady);
      else form.current.querySelector<HTMLElement>("input, textarea")?.focus();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });

  return (
    <>
      <form
        class="questions"
        ref={form}
        onSubmit={(event) => event.preventDefault()}
        onKeyDown={(event) => void (isSend(event) && answer())}
      >
        {questions.map((question, at) => (
          <AnswerFields
            key={at}
            question={question}
            at={at}
            draft={drafts.value[at] ?? noAnswer}
            isLocked={!mayAnswer}
            change={(draft) => {
              drafts.value = drafts.value.map((each, i) => (i === at ? draft : each));
              stored.set(request.id, drafts.value);
            }}
          />
        ))}
      </form>
      {children}
      {!mayAnswer && (
        <p class="answer-bar hint">
          You are signed in as {connection.server.roles.join(", ")}. Only the role approver can answer.
        </p>
      )}
      {mayAnswer && (
        <div class="answer-bar" aria-busy={isSending}>
          <SendingState sending={sending} />
          {!isLive && <p class="hint">You can answer again when the page is live.</p>}
          <p class="hint">
            An answer runs nothing: who asks reads it. Each later call is judged and asked for as always.
          </p>
          {isDismissing.value ? (
            <RejectForm
              isReady={isReady}
              request={request}
              equal={[]}
              send={dismiss}
              back={() => openDismissal(false)}
            />
          ) : (
            <div class="answers">
              <button type="button" class="primary" aria-disabled={!canSend} onClick={() => void answer()}>
                {isPart ? `Send ${questions.length - left} of ${questions.length}` : "Send"} <kbd>Ctrl ↵</kbd>
              </button>
              <button type="button" class="danger" aria-disabled={!isReady} onClick={() => openDismissal(isReady)}>
                Dismiss… <kbd>r</kbd>
              </button>
            </div>
          )}
        </div>
      )}
    </>
  );
}
