import type { JsonValue } from "@bufbuild/protobuf";
import { useId } from "preact/hooks";
import { visibleText } from "../parts/visible-text.ts";
import { Control } from "./control.tsx";
import { type Draft, emptyDraft, type Problems, withField } from "./draft.ts";
import { type Field, kindWords, type NamedField, objectOf } from "./field.ts";

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
