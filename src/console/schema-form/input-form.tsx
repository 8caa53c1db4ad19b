import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { type Signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { visibleText } from "../parts/visible-text.ts";
import {
  type Draft,
  emptyDraft,
  type Field,
  kindWords,
  type NamedField,
  objectOf,
  type Problems,
  withField,
} from "./field.ts";

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

interface InputProps {
  field: Field;
  /** The visible name; for an item of a list its position. */
  name: string;
  isRequired: boolean;
  /** The path of the field in the service's errors. */
  path: string;
  value: Draft;
  problems: Problems;
  onChange: (value: Draft) => void;
}

/** The inputs of an object's fields. */
function FieldInputs({
  fields,
  path,
  value,
  problems,
  onChange,
}: Pick<InputProps, "path" | "value" | "problems" | "onChange"> & { fields: readonly NamedField[] }) {
  return (
    <>
      {fields.map((field) => (
        <FieldInput
          key={field.name}
          field={field}
          name={field.name}
          isRequired={field.isRequired}
          path={path === "" ? field.name : `${path}.${field.name}`}
          value={objectOf(value)[field.name]}
          problems={problems}
          onChange={(next) => onChange(withField(value, field.name, next))}
        />
      ))}
    </>
  );
}

function FieldInput(props: InputProps) {
  const { kind } = props.field.shape;
  if (kind === "object" || kind === "list") return <Nested {...props} />;
  return <Single {...props} />;
}

/** The input of a single value, with its name, description and problem. */
function Single(props: InputProps) {
  const { field, name, isRequired, path, problems } = props;
  const id = useId();
  const problem = problems.at.get(path);
  const notes = [...field.hints, ...(isRequired || field.fallback === undefined ? [] : [fallbackWords(field)])];
  return (
    <div class="field">
      <label for={id}>
        <code>{visibleText(name)}</code>{" "}
        <small>{isRequired ? kindWords(field) : `${kindWords(field)}, optional`}</small>
      </label>
      <Control {...props} id={id} describedBy={`${id}-about ${id}-problem`} isWrong={problem !== undefined} />
      <small id={`${id}-about`}>
        {[visibleText(field.description), ...notes.map(visibleText)].filter(Boolean).join(" · ")}
      </small>
      <small id={`${id}-problem`} class="problem">
        {problem !== undefined && visibleText(problem)}
      </small>
    </div>
  );
}

/** The inputs of an object or a list; an optional one can be added and removed. */
function Nested(props: InputProps) {
  const { field, name, isRequired, path, value, problems, onChange } = props;
  const problem = problems.at.get(path);
  const isThere = value !== undefined;
  return (
    <fieldset class="nested">
      <legend>
        <code>{visibleText(name)}</code>{" "}
        <small>{isRequired ? kindWords(field) : `${kindWords(field)}, optional`}</small>
      </legend>
      {field.description !== "" && <small>{visibleText(field.description)}</small>}
      {problem !== undefined && (
        <p class="problem" role="alert">
          {visibleText(problem)}
        </p>
      )}
      {isThere && field.shape.kind === "list" && <Items {...props} item={field.shape.item} />}
      {isThere && field.shape.kind === "object" && (
        <FieldInputs fields={field.shape.fields} path={path} value={value} problems={problems} onChange={onChange} />
      )}
      {!isRequired && (
        <button type="button" class="quiet" onClick={() => onChange(isThere ? undefined : emptyDraft(field))}>
          {isThere ? "Remove" : "Add"} <span class="unseen">{visibleText(name)}</span>
        </button>
      )}
    </fieldset>
  );
}

function Items({ item, name, path, value, problems, onChange }: InputProps & { item: Field }) {
  const items: readonly JsonValue[] = Array.isArray(value) ? value : [];
  return (
    <>
      {items.map((one, i) => (
        <div key={i} class="item">
          <FieldInput
            field={item}
            name={`${name} ${i + 1}`}
            isRequired
            path={`${path}.${i}`}
            value={one}
            problems={problems}
            // An item keeps its position, so an unset one is null.
            onChange={(next) => onChange(items.with(i, next ?? null))}
          />
          <button type="button" class="quiet" onClick={() => onChange(items.toSpliced(i, 1))}>
            Remove <span class="unseen">{`${visibleText(name)} ${i + 1}`}</span>
          </button>
        </div>
      ))}
      <button type="button" onClick={() => onChange([...items, emptyDraft(item) ?? null])}>
        Add <span class="unseen">to {visibleText(name)}</span>
      </button>
    </>
  );
}

function fallbackWords({ fallback }: Field): string {
  return `default: ${JSON.stringify(fallback)}`;
}

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
function Control({ id, describedBy, isWrong, field: { shape, fallback }, isRequired, value, onChange }: ControlProps) {
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
