import { useSignal } from "@preact/signals";
import { PermissionReply, type PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { asksQuestions } from "../../view/questions.ts";
import { boundTo } from "../parts/bound.ts";
import { visibleText } from "../parts/visible-text.ts";
import { isSend } from "../shell/keys.ts";
import type { AnswerOutcome } from "./answer.ts";
import { FormEnd, type FormProps, focusFirst } from "./form.tsx";

/** The form that rejects, or dismisses questions, with optional advice for the model. */
export function RejectForm({
  isReady,
  request,
  equal,
  send,
  back,
}: FormProps & {
  request: PermissionRequest;
  /** A request of each other call that is equal to this one. */
  equal: readonly PermissionRequest[];
}) {
  const message = useSignal("");
  const reach = useSignal("call");
  const isQuestion = asksQuestions(request);
  const reject = (event: Event) => {
    event.preventDefault();
    void send({ reply: PermissionReply.REJECT, message: message.value.trim(), ...reachOf(reach.value, equal) });
  };
  return (
    <form class="answer-form" ref={focusFirst} onSubmit={reject} onKeyDown={(event) => isSend(event) && reject(event)}>
      <label for="advice">
        {isQuestion ? "What should it do without an answer?" : "What should it do instead?"} (optional; the model reads
        it)
      </label>
      <textarea id="advice" maxLength={16_384} {...boundTo(message)} />
      {!isQuestion && (
        <label class="limit">
          <span>Reject</span>
          <select {...boundTo(reach)}>
            <option value="call">this call</option>
            {equal.length > 0 && <option value="equal">all {equal.length + 1} equal calls</option>}
            <option value="session">all that wait in this session</option>
            <option value="agent">all that wait of agent {visibleText(request.agent)}</option>
          </select>
        </label>
      )}
      <FormEnd back={back}>
        <button type="submit" class="danger" aria-disabled={!isReady}>
          {isQuestion ? "Dismiss" : reach.value === "call" ? "Reject" : "Reject all"} <kbd>Ctrl ↵</kbd>
        </button>
      </FormEnd>
    </form>
  );
}

/** The requests that a reject ends together with the one that is shown. */
function reachOf(
  reach: string,
  equal: readonly PermissionRequest[],
): Pick<Extract<AnswerOutcome, { reply: typeof PermissionReply.REJECT }>, "all" | "equal"> {
  if (reach === "session" || reach === "agent") return { all: reach };
  return reach === "equal" ? { equal: equal.map(({ sessionId, id, digest }) => ({ sessionId, id, digest })) } : {};
}
