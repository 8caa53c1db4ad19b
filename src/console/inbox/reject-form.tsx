import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { PermissionReply, type PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { asksQuestions } from "../../view/questions.ts";
import { visibleText } from "../parts/visible-text.ts";
import type { RejectScope } from "./answer.ts";
import { FormEnd, type FormProps } from "./form.tsx";

const scopes: readonly RejectScope[] = ["session", "agent"];

/** The form that rejects, or dismisses questions, with optional advice for the model. */
export function RejectForm({ isReady, request, send, back }: FormProps & { request: PermissionRequest }) {
  const message = useSignal("");
  const all = useSignal<RejectScope | "">("");
  const isQuestion = asksQuestions(request);
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => field.current?.focus(), []);
  const reject = (event: Event) => {
    event.preventDefault();
    void send({ reply: PermissionReply.REJECT, message: message.value.trim(), ...(all.value && { all: all.value }) });
  };
  return (
    <form class="answer-form" onSubmit={reject}>
      <label for="advice">
        {isQuestion ? "What should it do without an answer?" : "What should it do instead?"} (optional; the model reads
        it)
      </label>
      <textarea
        id="advice"
        ref={field}
        maxLength={16_384}
        value={message}
        placeholder={isQuestion ? "Look in the readme" : "Use the staging database"}
        onInput={({ currentTarget }) => {
          message.value = currentTarget.value;
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) reject(event);
        }}
      />
      {!isQuestion && (
        <label class="limit">
          <span>Reject</span>
          <select
            value={all}
            onChange={({ currentTarget }) => {
              all.value = scopes.find((scope) => scope === currentTarget.value) ?? "";
            }}
          >
            <option value="">this call</option>
            <option value="session">all that wait in this session</option>
            <option value="agent">all that wait of agent {visibleText(request.agent)}</option>
          </select>
        </label>
      )}
      <FormEnd back={back}>
        <button type="submit" class="danger" aria-disabled={!isReady}>
          {isQuestion ? "Dismiss" : all.value === "" ? "Reject" : "Reject all"} <kbd>Ctrl ↵</kbd>
        </button>
      </FormEnd>
    </form>
  );
}
