import type { DescMessage, Message } from "@bufbuild/protobuf";
import { createValidator, type Validator } from "@bufbuild/protovalidate";

/** Creates a validator of the contract's rules. */
export function createContractValidator(): Validator {
  return createValidator({ regexMatch: createMatcher() });
}

/** Caches the contract's few patterns as regular expressions: five times as fast as the validator's default. */
function createMatcher() {
  const compiled = new Map<string, RegExp>();
  return (pattern: string, text: string) => {
    const matcher = compiled.get(pattern) ?? new RegExp(pattern, "u");
    compiled.set(pattern, matcher);
    return matcher.test(text);
  };
}

/**
 * Creates the check for numbers that JSON cannot write, such as the infinity that `1e400` is read as. Returns the path of the
 * first one; undefined if there is none, or if messages of this type hold no JSON.
 */
export function createNumberCheck(): (schema: DescMessage, message: Message) => string | undefined {
  const holders = new Map<DescMessage, boolean>();
  return (schema, message) => {
    const holdsJson = holders.get(schema) ?? canHoldJson(schema, new Set());
    holders.set(schema, holdsJson);
    return holdsJson ? findUnwritable(message) : undefined;
  };
}

function canHoldJson({ typeName, fields }: DescMessage, seen: Set<string>): boolean {
  if (typeName === "google.protobuf.Struct") return true;
  if (seen.has(typeName)) return false;
  seen.add(typeName);
  return fields.some(({ message }) => message !== undefined && canHoldJson(message, seen));
}

/** Returns the path of the first number that JSON cannot write; undefined if there is none. */
export function findUnwritable(value: unknown, path = ""): string | undefined {
  if (typeof value === "number") return Number.isFinite(value) ? undefined : path;
  if (typeof value !== "object" || value === null || value instanceof Uint8Array) return undefined;
  for (const [key, inner] of Object.entries(value)) {
    const found = findUnwritable(inner, path === "" ? key : `${path}.${key}`);
    if (found !== undefined) return found;
  }
  return undefined;
}
