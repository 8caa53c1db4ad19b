import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { type Field, objectOf } from "./field.ts";

/** A value that is being filled in; undefined if it is not set. */
export type Draft = JsonValue | undefined;

/** The initial value of a form: required objects and texts are empty, optional values are not set. */
export function emptyDraft({ shape }: Field): Draft {
  if (shape.kind === "text") return "";
  if (shape.kind === "boolean") return false;
  if (shape.kind === "list") return [];
  if (shape.kind === "choice") return shape.values.length === 1 ? shape.values[0] : undefined;
  if (shape.kind !== "object") return undefined;
  const required = shape.fields.filter(({ isRequired }) => isRequired);
  return required.reduce<JsonObject>((draft, field) => withField(draft, field.name, emptyDraft(field)), {});
}

/** Returns the object with one field set or removed. */
export function withField(object: Draft, name: string, value: Draft): JsonObject {
  const { [name]: _, ...rest } = objectOf(object);
  return value === undefined ? rest : { ...objectOf(object), [name]: value };
}

/** The service's validation errors: by path of a field, and the rest. */
export interface Problems {
  readonly at: ReadonlyMap<string, string>;
  readonly rest: string;
}

/** An input without problems. */
export const noProblems: Problems = { at: new Map(), rest: "" };

/** Assigns each line of the service's validation error to a field. */
export function readProblems(message: string, field: Field): Problems {
  const at = new Map<string, string>();
  const lines = message.split("\n").filter((line) => {
    const [, path = "", text = ""] = /^- ([^:]*): (.*)$/.exec(line) ?? [];
    const missing = /required property '(.+)'$/.exec(text)?.[1];
    // The service names the whole input `input`. A problem of a field of that name is shown below the form.
    const parent = path === "input" ? "" : path;
    const full = [parent, missing].filter((part) => part !== undefined && part !== "").join(".");
    if (text === "" || full === "" || fieldAt(field, full) === undefined) return true;
    at.set(full, missing === undefined ? text : "is required");
    return false;
  });
  return { at, rest: at.size > 0 && lines.length <= 2 ? "" : lines.join("\n") };
}

/** The field at a path such as `todos.0.status`. */
function fieldAt(field: Field, path: string): Field | undefined {
  return path.split(".").reduce<Field | undefined>((place, step) => {
    if (place?.shape.kind === "list") return /^\d+$/.test(step) ? place.shape.item : undefined;
    return place?.shape.kind === "object" ? place.shape.fields.find(({ name }) => name === step) : undefined;
  }, field);
}
