import { visibleText } from "../parts/visible-text.ts";
import { type Field, kindWords, type NamedField } from "../schema-form/field.ts";

/** The fields of a value with their types, limits and descriptions. */
export function SchemaView({ field }: { field: Field }) {
  const fields = fieldsOf(field);
  if (fields === undefined) return <p>{kindWords(field)}</p>;
  if (fields.length === 0) return <p>No fields.</p>;
  return (
    <ul class="schema">
      {fields.map((one) => (
        <li key={one.name}>
          <code>
            <b>{visibleText(one.name)}</b>
          </code>{" "}
          <small>{notesOf(one).map(visibleText).join(" · ")}</small>
          {one.description !== "" && <p class="soft">{visibleText(one.description)}</p>}
          {fieldsOf(one) !== undefined && <SchemaView field={one} />}
        </li>
      ))}
    </ul>
  );
}

/** The fields of an object, or of the objects of a list. */
function fieldsOf({ shape }: Field): readonly NamedField[] | undefined {
  if (shape.kind === "object") return shape.fields;
  return shape.kind === "list" ? fieldsOf(shape.item) : undefined;
}

function notesOf(field: NamedField): readonly string[] {
  const { shape, isRequired, hints, fallback } = field;
  const of = shape.kind === "list" ? shape.item.shape : shape;
  const choices = of.kind === "choice" ? [of.values.map((value) => JSON.stringify(value)).join(", ")] : [];
  const leftOut = fallback === undefined ? "optional" : `optional, default ${JSON.stringify(fallback)}`;
  return [kindWords(field), ...choices, ...hints, isRequired ? "required" : leftOut];
}
