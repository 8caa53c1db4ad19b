import type { JsonObject } from "@bufbuild/protobuf";
import { type Signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import type { Problems } from "./draft.ts";
import { type Field, objectOf } from "./field.ts";
import { FieldInputs } from "./field-input.tsx";

/**
 * A form for the input of a tool: by field, or as JSON where no field fits. It blocks only invalid JSON; the service
 * validates the rest.
 */
export function InputForm({
  field: { shape },
  input,
  problems,
  onSubmit,
  children,
}: {
  field: Field;
  input: Signal<JsonObject>;
  problems: Problems;
  onSubmit: () => void;
  /** The buttons. */
  children: ComponentChildren;
}) {
  const form = useRef<HTMLFormElement>(null);
  const isJson = useSignal(shape.kind !== "object");
  useEffect(() => {
    form.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus();
  }, [problems]);
  return (
    <form
      ref={form}
      class="input-form"
      onSubmit={(event) => {
        event.preventDefault();
        onSubmit();
      }}
    >
      {shape.kind === "object" && !isJson.value && (
        <FieldInputs
          fields={shape.fields}
          path=""
          value={input.value}
          problems={problems}
          onChange={(value) => (input.value = objectOf(value))}
        />
      )}
      {shape.kind === "object" && !isJson.value && shape.fields.length === 0 && (
        <p class="soft">This tool takes no input.</p>
      )}
      {isJson.value && <JsonInput input={input} problems={problems} />}
      {problems.rest !== "" && (
        <pre class="problem" role="alert">
          {problems.rest}
        </pre>
      )}
      <div class="actions">
        {children}
        {shape.kind === "object" && (
          <button type="button" class="quiet" onClick={() => (isJson.value = !isJson.value)}>
            {isJson.value ? "Edit as form" : "Edit as JSON"}
          </button>
        )}
      </div>
    </form>
  );
}

function JsonInput({ input, problems }: { input: Signal<JsonObject>; problems: Problems }) {
  const id = useId();
  const text = useSignal(JSON.stringify(input.peek(), null, 2));
  const isWrong = problems.at.size > 0;
  return (
    <div class="field">
      <label for={id}>Input as JSON</label>
      <textarea
        id={id}
        class="mono"
        rows={Math.min(20, text.value.split("\n").length + 1)}
        spellcheck={false}
        aria-invalid={isWrong}
        aria-describedby={`${id}-problem`}
        value={text}
        onInput={({ currentTarget }) => {
          text.value = currentTarget.value;
          currentTarget.setCustomValidity(readObject(currentTarget.value, input));
        }}
      />
      <pre id={`${id}-problem`} class="problem">
        {[...problems.at].map(([path, problem]) => `${path}: ${problem}`).join("\n")}
      </pre>
    </div>
  );
}

/** Sets the input from JSON text; returns the problem if the text is not an object. */
function readObject(text: string, input: Signal<JsonObject>): string {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value !== "object" || value === null || Array.isArray(value)) return "Enter a JSON object: { … }";
    input.value = JSON.parse(text);
    return "";
  } catch (error) {
    return `Invalid JSON: ${error instanceof Error ? error.message : ""}`;
  }
}
