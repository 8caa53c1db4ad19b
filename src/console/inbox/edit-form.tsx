import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { useSignal } from "@preact/signals";
import { PermissionReply } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { visibleText } from "../parts/visible-text.ts";
import { useLoaded } from "../shell/load.ts";
import { ProblemText } from "../shell/page.tsx";
import type { ConsoleConnection } from "../stream/connection.ts";
import type { AskGroup } from "./ask-list.ts";
import { FormEnd, type FormProps } from "./form.tsx";

/** An argument that is being edited: texts verbatim, other values as JSON. */
interface Field {
  readonly name: string;
  readonly isText: boolean;
  readonly value: string;
}

/** The form that changes a call's arguments. It approves nothing: the new arguments are evaluated and may ask again. */
export function EditForm({
  group,
  connection,
  isReady,
  send,
  back,
}: FormProps & {
  group: AskGroup;
  connection: ConsoleConnection;
}) {
  const { sessionId = "", tool: { callId = "" } = {} } = group.open[0] ?? {};
  const call = useLoaded(
    (signal) => connection.tools.getToolPart({ sessionId, callId }, { signal }),
    [sessionId, callId],
  );
  const edited = useSignal<readonly Field[] | undefined>(undefined);
  const wrong = useSignal("");
  const fields = edited.value ?? (call.value && fieldsOf(call.value.part?.state.value?.input ?? {}));

  const submit = (event: Event) => {
    event.preventDefault();
    const input = inputOf(fields ?? []);
    if (typeof input === "string") wrong.value = input;
    else void send({ reply: PermissionReply.ONCE, input });
  };
  return (
    <form class="answer-form" onSubmit={submit}>
      <p class="hint">
        Edit the arguments. They are evaluated again: you’ll be asked again for anything new they need.
      </p>
      {fields?.map(({ name, isText, value }, i) => (
        <label key={name}>
          <span>
            {visibleText(name)} {!isText && <small>JSON</small>}
          </span>
          <textarea
            ref={(area) => {
              if (i === 0 && area !== null && document.activeElement?.tagName !== "TEXTAREA") area.focus();
            }}
            class="mono"
            spellcheck={false}
            rows={Math.min(8, value.split("\n").length)}
            value={value}
            onInput={({ currentTarget }) =>
              (edited.value = fields.with(i, { name, isText, value: currentTarget.value }))
            }
          />
        </label>
      ))}
      <ProblemText text={wrong.value || call.problem} />
      <FormEnd back={back}>
        <button type="submit" class="primary" aria-disabled={!isReady || fields === undefined}>
          Use these arguments
        </button>
      </FormEnd>
    </form>
  );
}

function fieldsOf(input: JsonObject): readonly Field[] {
  return Object.entries(input).map(([name, value]) =>
    typeof value === "string"
      ? { name, isText: true, value }
      : { name, isText: false, value: JSON.stringify(value, null, 2) },
  );
}

/** Returns the arguments, or the problem with them. */
function inputOf(fields: readonly Field[]): JsonObject | string {
  const input: JsonObject = {};
  for (const { name, isText, value } of fields) {
    try {
      input[name] = isText ? value : (JSON.parse(value) satisfies JsonValue);
    } catch {
      return `${name} is not valid JSON: put text in quotes`;
    }
  }
  return input;
}
