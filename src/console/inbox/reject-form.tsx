import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { PermissionReply } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { FormEnd, type FormProps } from "./form.tsx";

/** The form that rejects, or dismisses questions, with optional advice for the model. */
export function RejectForm({ isReady, isQuestion = false, send, back }: FormProps & { isQuestion?: boolean }) {
  const message = useSignal("");
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => field.current?.focus(), []);
  const reject = (event: Event) => {
    event.preventDefault();
    void send({ reply: PermissionReply.REJECT, message: message.value.trim() });
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
      <FormEnd back={back}>
        <button type="submit" class="danger" aria-disabled={!isReady}>
          {isQuestion ? "Dismiss" : "Reject"} <kbd>Ctrl ↵</kbd>
        </button>
      </FormEnd>
    </form>
  );
}
