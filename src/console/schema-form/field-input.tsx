import type { JsonValue } from "@bufbuild/protobuf";
import { useSignal } from "@preact/signals";
import { useId } from "preact/hooks";
import { visibleText } from "../visible-text.ts";
import { type Draft, emptyDraft, type Problems, withField } from "./draft.ts";
import { type Field, kindWords, type NamedField, objectOf } from "./field.ts";

interface InputProps {
  field: Field;
  /** What the person reads; of an item of a list its place. */
  name: string;
  isRequired: boolean;
  /** The path by which the service would name it. */
  path: string;
  value: Draft;
  problems: Problems;
  onChange: (value: Draft) => void;
}

/** The fields of an object, one below the other. */
export function FieldInputs({
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

/** A value of one input, with its name, what it is for, and what is wrong with it. */
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

function Control({
  id,
  describedBy,
  isWrong,
  field: { shape, fallback },
  isRequired,
  value,
  onChange,
}: InputProps & { id: string; describedBy: string; isWrong: boolean }) {
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
  return <Written common={common} read={read} isLong={shape.kind === "json"} value={value} onChange={onChange} />;
}

type Common = { id: string; "aria-describedby": string; "aria-invalid": boolean; "aria-required": boolean };

function Choice({
  common,
  values,
  value,
  onChange,
}: Pick<InputProps, "value" | "onChange"> & { common: Common; values: readonly JsonValue[] }) {
  const index = values.findIndex((one) => JSON.stringify(one) === JSON.stringify(value));
  return (
    <select
      {...common}
      value={String(index)}
      onChange={({ currentTarget }) => onChange(values[Number(currentTarget.value)])}
    >
      <option value="-1">{common["aria-required"] ? "Choose…" : "left out"}</option>
      {values.map((one, i) => (
        <option key={i} value={String(i)}>
          {typeof one === "string" ? visibleText(one) : JSON.stringify(one)}
        </option>
      ))}
    </select>
  );
}

/** A value that is written as text and may, while one writes, not be one yet; the form is not sent until it is. */
function Written({
  common,
  read,
  isLong,
  value,
  onChange,
}: Pick<InputProps, "value" | "onChange"> & {
  common: Common;
  read: (text: string) => { value: Draft; problem: string };
  isLong: boolean;
}) {
  const written = useSignal("");
  // The text stays as it is written as long as it says the same as the value, which may also be set from elsewhere.
  const isSame = JSON.stringify(read(written.value).value) === JSON.stringify(value);
  const text = isSame ? written.value : value === undefined ? "" : JSON.stringify(value, null, isLong ? 2 : 0);
  const onInput = ({ currentTarget }: { currentTarget: HTMLInputElement | HTMLTextAreaElement }) => {
    const found = read(currentTarget.value);
    written.value = currentTarget.value;
    currentTarget.setCustomValidity(found.problem);
    onChange(found.value);
  };
  return isLong ? (
    <textarea {...common} class="mono" rows={3} spellcheck={false} placeholder="JSON" value={text} onInput={onInput} />
  ) : (
    <input {...common} inputMode="decimal" value={text} onInput={onInput} />
  );
}

function readNumber(text: string): { value: Draft; problem: string } {
  const value = text.trim() === "" ? undefined : Number(text);
  return Number.isFinite(value ?? 0) ? { value, problem: "" } : { value: undefined, problem: "Write a number." };
}

function readJson(text: string): { value: Draft; problem: string } {
  if (text.trim() === "") return { value: undefined, problem: "" };
  try {
    return { value: JSON.parse(text), problem: "" };
  } catch (error) {
    return { value: undefined, problem: `Write JSON: ${error instanceof Error ? error.message : ""}` };
  }
}

/** An object or a list: one that is optional is there once it is added. */
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
          {isThere ? "Leave out" : "Fill in"} <span class="unseen">{visibleText(name)}</span>
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
            // An item has a place that its followers keep: what is not written yet is null.
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
  return `left out, it is ${JSON.stringify(fallback)}`;
}
