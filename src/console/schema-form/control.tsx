import type { JsonValue } from "@bufbuild/protobuf";
import { useSignal } from "@preact/signals";
import { visibleText } from "../parts/visible-text.ts";
import type { Draft } from "./draft.ts";
import type { Field } from "./field.ts";

interface ControlProps {
  id: string;
  /** The ids of its description and its problem. */
  describedBy: string;
  isWrong: boolean;
  field: Field;
  isRequired: boolean;
  value: Draft;
  onChange: (value: Draft) => void;
}

/** The input for a value that is neither an object nor a list. */
export function Control({
  id,
  describedBy,
  isWrong,
  field: { shape, fallback },
  isRequired,
  value,
  onChange,
}: ControlProps) {
  const common = { id, "aria-describedby": describedBy, "aria-invalid": isWrong, "aria-required": isRequired };
  if (shape.kind === "choice")
    return <Choice common={common} values={shape.values} value={value} onChange={onChange} />;
  if (shape.kind === "boolean" && isRequired) {
    return (
      <input
        {...common}
        type="checkbox"
        checked={value === true}
        onChange={({ currentTarget }) => onChange(currentTarget.checked)}
      />
    );
  }
  if (shape.kind === "boolean")
    return <Choice common={common} values={[true, false]} value={value} onChange={onChange} />;
  if (shape.kind === "text") {
    const text = typeof value === "string" ? value : "";
    return (
      <textarea
        {...common}
        class="mono"
        rows={Math.min(12, text.split("\n").length)}
        spellcheck={false}
        autocapitalize="off"
        placeholder={typeof fallback === "string" ? fallback : ""}
        value={text}
        onInput={({ currentTarget }) =>
          onChange(currentTarget.value === "" && !isRequired ? undefined : currentTarget.value)
        }
      />
    );
  }
  const read = shape.kind === "number" ? readNumber : readJson;
  return <TypedValue common={common} read={read} isLong={shape.kind === "json"} value={value} onChange={onChange} />;
}

type Common = { id: string; "aria-describedby": string; "aria-invalid": boolean; "aria-required": boolean };

function Choice({
  common,
  values,
  value,
  onChange,
}: Pick<ControlProps, "value" | "onChange"> & { common: Common; values: readonly JsonValue[] }) {
  const index = values.findIndex((one) => JSON.stringify(one) === JSON.stringify(value));
  return (
    <select
      {...common}
      value={String(index)}
      onChange={({ currentTarget }) => onChange(values[Number(currentTarget.value)])}
    >
      <option value="-1">{common["aria-required"] ? "Choose…" : "not set"}</option>
      {values.map((one, i) => (
        <option key={i} value={String(i)}>
          {typeof one === "string" ? visibleText(one) : JSON.stringify(one)}
        </option>
      ))}
    </select>
  );
}

/** A value that is typed as text. While the text is not a valid value, the form cannot be submitted. */
function TypedValue({
  common,
  read,
  isLong,
  value,
  onChange,
}: Pick<ControlProps, "value" | "onChange"> & {
  common: Common;
  read: (text: string) => { value: Draft; problem: string };
  isLong: boolean;
}) {
  const typed = useSignal("");
  // Keeps the typed text as long as it means the current value, which other code may set too. In a list, null stands for
  // a missing value.
  const isSame = JSON.stringify(read(typed.value).value ?? null) === JSON.stringify(value ?? null);
  const text = isSame ? typed.value : JSON.stringify(value, null, isLong ? 2 : 0);
  const element = {
    ...common,
    value: text,
    ref: (input: HTMLInputElement | HTMLTextAreaElement | null) => input?.setCustomValidity(read(text).problem),
    onInput({ currentTarget }: { currentTarget: HTMLInputElement | HTMLTextAreaElement }) {
      typed.value = currentTarget.value;
      onChange(read(currentTarget.value).value);
    },
  };
  return isLong ? (
    <textarea {...element} class="mono" rows={3} spellcheck={false} placeholder="JSON" />
  ) : (
    <input {...element} inputMode="decimal" />
  );
}

function readNumber(text: string): { value: Draft; problem: string } {
  const value = text.trim() === "" ? undefined : Number(text);
  return Number.isFinite(value ?? 0) ? { value, problem: "" } : { value: undefined, problem: "Enter a number." };
}

function readJson(text: string): { value: Draft; problem: string } {
  if (text.trim() === "") return { value: undefined, problem: "" };
  try {
    return { value: JSON.parse(text), problem: "" };
  } catch (error) {
    return { value: undefined, problem: `Invalid JSON: ${error instanceof Error ? error.message : ""}` };
  }
}
