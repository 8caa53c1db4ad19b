import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { visibleLine } from "../core/visible.ts";

/** What conditions of rules may use of an ask. A fact that is absent is unknown. */
export interface Facts {
  /** True if the sandbox keeps all effects of the command line in the workspace and in private files; otherwise the reason. */
  contained?: true | string;
  /** The kinds of risk of the call. */
  risks?: readonly RiskKind[];
  /** The tool of the call. */
  tool?: string;
  /** The input of the call, as approvers see it. */
  input?: JsonObject;
}

/** A field of the input that a condition uses. */
export interface InputUse {
  /** Keys from the top, and places in lists. */
  path: readonly (string | number)[];
  /** The type that the field must have, as JSON Schema names it; absent if any will do. */
  type?: "string" | "number" | "boolean" | "array";
}

/** The condition of a rule. */
export interface Condition {
  /** Evaluates it; undefined if that is unknown. */
  holds(facts: Facts): boolean | undefined;
  /** Names the facts that it uses. */
  readonly names: ReadonlySet<string>;
  /** The fields of the input that it uses. */
  readonly inputs: readonly InputUse[];
}

/** A condition that cannot be read; the message says what and why. */
export class ConditionError extends Error {
  override name = "ConditionError";
}

const maxBytes = 1_024;
const maxNodes = 64;
/** Longer texts and lists of an input are not searched: whether they contain something is unknown. */
const maxSearched = 65_536;

/** Reads a condition. Throws `ConditionError`. It has no loops and no patterns, so evaluation takes as many steps as it has parts. */
export function readCondition(text: string): Condition {
  if (Buffer.byteLength(text) > maxBytes) throw new ConditionError(`has over ${maxBytes} bytes`);
  const tokens = tokensOf(text);
  const names = new Set<string>();
  const inputs: InputUse[] = [];
  let [at, nodes] = [0, 0];
  const peek = (ahead = 0) => tokens[at + ahead] ?? "";
  const take = (token: string) => peek() === token && ++at > 0;
  function count(): void {
    nodes += 1;
    if (nodes > maxNodes) throw new ConditionError(`has over ${maxNodes} parts`);
  }
  function made(of: Part["of"], more: Omit<Part, "of"> = {}): Part {
    count();
    return { of, ...more };
  }
  function expectToken(token: string): void {
    if (!take(token)) throw new ConditionError(`expects ${token} ${peek() === "" ? "at its end" : `before ${peek()}`}`);
  }
  function either(): Part {
    let left = both();
    while (take("||")) {
      const [one, other] = [left, both()];
      left = made((facts) => anyOf(truth(one.of(facts)), () => truth(other.of(facts))));
    }
    return left;
  }
  function both(): Part {
    let left = inverse();
    while (take("&&")) {
      const [one, other] = [left, inverse()];
      left = made((facts) => not(anyOf(not(truth(one.of(facts))), () => not(truth(other.of(facts))))));
    }
    return left;
  }
  function inverse(): Part {
    if (!take("!")) return comparison();
    const inner = nested(inverse);
    return made((facts) => not(truth(inner.of(facts))));
  }
  function comparison(): Part {
    const left = value();
    const name = peek();
    const operator = Object.hasOwn(operators, name) ? operators[name] : undefined;
    if (!operator) return left;
    at += 1;
    const right = value();
    const isOrder = name.startsWith("<") || name.startsWith(">");
    noteType(left, isOrder ? "number" : name === "in" ? elementType(right) : literalType(right));
    noteType(right, isOrder ? "number" : name === "in" ? "array" : literalType(left));
    if (left.isRisk || right.isRisk) for (const { literal } of [left, right]) checkRiskNames(literal);
    return made((facts) => applied(operator, left.of(facts), right.of(facts)));
  }
  function nested(read: () => Part): Part {
    count();
    return read();
  }
  function value(): Part {
    let part = primary();
    while (peek() === "." && peek(2) === "(") {
      const method = peek(1);
      const search = Object.hasOwn(methods, method) ? methods[method] : undefined;
      if (!search)
        throw new ConditionError(`has the unknown method ${method}; known are ${Object.keys(methods).join(", ")}`);
      at += 3;
      const [text, wanted] = [part, nested(value)];
      expectToken(")");
      for (const each of [text, wanted]) noteType(each, "string");
      part = made((facts) => applied(search, text.of(facts), wanted.of(facts)));
    }
    return part;
  }
  function primary(): Part {
    const token = peek();
    at += 1;
    if (token === "(") {
      const inner = nested(either);
      expectToken(")");
      return inner;
    }
    if (token === "[") {
      const items: Part[] = [];
      while (!take("]")) {
        items.push(nested(value));
        if (peek() !== "]") expectToken(",");
      }
      const literals = items.map(({ literal }) => literal);
      const isLiteral = literals.every((literal) => literal !== undefined);
      return made((facts) => items.map((item) => item.of(facts)), isLiteral ? { literal: literals } : {});
    }
    if (token === "size" && take("(")) {
      const inner = nested(value);
      expectToken(")");
      return made((facts) => sizeOf(inner.of(facts)));
    }
    if (token === "has" && take("(")) {
      if (!take("input")) throw new ConditionError("expects a field of the input in has(…), such as has(input.amount)");
      const path = inputPath();
      expectToken(")");
      return made(({ input }) => input && fieldOf(input, path) !== undefined);
    }
    const literal = literalOf(token);
    if (literal !== undefined) return made(() => literal, { literal });
    if (token === "contained" || token === "tool") names.add(token);
    if (token === "contained")
      return made(({ contained }) => (contained === undefined ? undefined : contained === true));
    if (token === "tool") return made(({ tool }) => tool);
    if (token === "input") return inputField();
    if (token === "risk") return risk();
    throw new ConditionError(unknownName(token));
  }
  function inputField(): Part {
    const path = inputPath();
    const use = inputs.at(-1);
    return made(({ input }) => comparable(input && fieldOf(input, path)), { ...(use && { use }) });
  }
  function inputPath(): readonly (string | number)[] {
    names.add("input");
    const path: (string | number)[] = [];
    for (;;) {
      if (peek() === "." && /^[A-Za-z_]/.test(peek(1)) && peek(2) !== "(") {
        path.push(peek(1));
        at += 2;
      } else if (take("[")) {
        const key = literalOf(peek());
        if (typeof key !== "string" && !(typeof key === "number" && Number.isSafeInteger(key) && key >= 0))
          throw new ConditionError(
            'expects a key or a place in input[…], such as input["unit price"] or input.items[0]',
          );
        path.push(key);
        at += 1;
        expectToken("]");
      } else break;
      count();
    }
    if (path.length === 0) throw new ConditionError("names no field of input; write input.FIELD");
    inputs.push({ path });
    return path;
  }
  function risk(): Part {
    names.add("risk");
    if (!take(".")) return made(({ risks }) => risks?.map(riskName), { isRisk: true });
    if (!take("only")) throw new ConditionError("expects only([…]) after risk.");
    expectToken("(");
    const allowed = nested(value);
    expectToken(")");
    checkRiskNames(allowed.literal);
    return made((facts) => applied(isSubset, facts.risks?.map(riskName), allowed.of(facts)));
  }
  const root = either();
  if (at < tokens.length) throw new ConditionError(`does not end before ${peek()}`);
  return { holds: (facts) => truth(root.of(facts)), names, inputs };
}

type Value = boolean | number | string | readonly (Value | JsonValue)[] | undefined;
type Known = Exclude<Value, undefined>;
type Operator = (left: Known, right: Known) => boolean | undefined;

/** A part of a condition: its value, and what is known of it without facts. */
interface Part {
  of(facts: Facts): Value;
  /** Its value, if it is written in the condition. */
  literal?: Known;
  /** The field of the input that it is. */
  use?: InputUse;
  isRisk?: true;
}

const operators: Readonly<Record<string, Operator>> = {
  "==": isSame,
  "!=": (left, right) => not(isSame(left, right)),
  "<": ordered((left, right) => left < right),
  "<=": ordered((left, right) => left <= right),
  ">": ordered((left, right) => left > right),
  ">=": ordered((left, right) => left >= right),
  in: isIn,
};

const methods: Readonly<Record<string, Operator>> = {
  startsWith: searched((text, wanted) => text.startsWith(wanted)),
  endsWith: searched((text, wanted) => text.endsWith(wanted)),
  contains: searched((text, wanted) => (text.length > maxSearched ? undefined : text.includes(wanted))),
};

function isSame(left: Known, right: Known): boolean | undefined {
  return typeof left === typeof right && typeof left !== "object" ? left === right : undefined;
}

function isIn(left: Known, right: Known): boolean | undefined {
  if (typeof left === "object" || typeof right !== "object" || right.length > maxSearched) return undefined;
  // An item that is unknown may be the one that is looked for.
  return right.includes(left) || (right.includes(undefined) ? undefined : false);
}

function ordered(compare: (left: number, right: number) => boolean): Operator {
  return (left, right) => (typeof left === "number" && typeof right === "number" ? compare(left, right) : undefined);
}

function searched(search: (text: string, wanted: string) => boolean | undefined): Operator {
  return (left, right) => (typeof left === "string" && typeof right === "string" ? search(left, right) : undefined);
}

const isSubset: Operator = (left, right) =>
  typeof left === "object"
    ? not(
        left
          .map((one) => not(applied(isIn, comparable(one), right)))
          .reduce((one, other) => anyOf(one, () => other), false),
      )
    : undefined;

function applied(operator: Operator, left: Value, right: Value): boolean | undefined {
  return left === undefined || right === undefined ? undefined : operator(left, right);
}

const sizeOf = (value: Value) => (typeof value === "object" || typeof value === "string" ? value.length : undefined);
const truth = (value: Value) => (typeof value === "boolean" ? value : undefined);
const not = (value: boolean | undefined) => (value === undefined ? undefined : !value);

/** One that holds settles it, even if the other is unknown. */
function anyOf(one: boolean | undefined, two: () => boolean | undefined): boolean | undefined {
  if (one) return true;
  const other = two();
  return other ? true : one === undefined ? undefined : other;
}

/** Returns the field of an input at a path; undefined if there is none. */
function fieldOf(input: JsonValue, path: InputUse["path"]): JsonValue | undefined {
  let found: JsonValue | undefined = input;
  for (const key of path) {
    if (typeof found !== "object" || found === null || Array.isArray(found) !== (typeof key === "number"))
      return undefined;
    found = Object.hasOwn(found, key) ? (found as Record<string | number, JsonValue>)[key] : undefined;
  }
  return found;
}

/** Returns what can be compared; null and objects cannot. */
function comparable(json: Value | JsonValue): Value {
  return typeof json === "object" && !Array.isArray(json) ? undefined : json;
}

function noteType({ use }: Part, type: InputUse["type"]): void {
  if (use && type) use.type = type;
}

function literalType({ literal }: Part): InputUse["type"] {
  const type = typeof literal;
  return type === "string" || type === "number" || type === "boolean" ? type : undefined;
}

/** Returns the type of the items of a list that is written in the condition, if they have one. */
function elementType({ literal }: Part): InputUse["type"] {
  const types = new Set(typeof literal === "object" ? literal.map((item) => typeof item) : []);
  const [type] = types;
  return types.size === 1 && (type === "string" || type === "number" || type === "boolean") ? type : undefined;
}

function tokensOf(text: string): string[] {
  const tokens: string[] = [];
  const pattern =
    /\s*(&&|\|\||==|!=|<=|>=|[!<>()[\],.]|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|[A-Za-z_]\w*|'[^'\\]*'|"[^"\\]*")/y;
  while (pattern.lastIndex < text.trimEnd().length) {
    const from = pattern.lastIndex;
    const [, token] = pattern.exec(text) ?? [];
    if (token === undefined)
      throw new ConditionError(`cannot be read from ${JSON.stringify(text.slice(from, from + 20))} on`);
    tokens.push(token);
  }
  if (tokens.length === 0) throw new ConditionError("is empty; leave it out where the rule always matches");
  return tokens;
}

function literalOf(token: string): boolean | number | string | undefined {
  if (token === "true" || token === "false") return token === "true";
  if (/^-?\d/.test(token)) return Number(token);
  return /^['"]/.test(token) ? token.slice(1, -1) : undefined;
}

const unknownName = (token: string) =>
  token === "" ? "ends too early" : `has the unknown name ${token}; known are contained, risk, input and tool`;

/** The names of the kinds of risk, as conditions spell them. */
const namesOfRisks = new Map<RiskKind, string>(
  Object.entries(RiskKind).flatMap(([name, kind]) => (kind === 0 ? [] : [[kind, name.toLowerCase()]])),
);
const riskKinds: readonly string[] = [...namesOfRisks.values()];
const riskName = (kind: RiskKind) => namesOfRisks.get(kind) ?? String(kind);

/** Refuses texts that name no kind of risk, since a misspelled one would never be found. */
function checkRiskNames(literal: Value): void {
  for (const name of typeof literal === "object" ? literal : [literal])
    if (typeof name === "string" && !riskKinds.includes(name))
      throw new ConditionError(`names the risk '${name}'; known are ${riskKinds.join(", ")}`);
}

/** Checks if a condition depends on the input of the call. */
export const usesInput = (when = ""): boolean => when.includes("input") && readCondition(when).names.has("input");

/** Describes the facts that a condition uses, for people. */
export function describeFacts({ names, inputs }: Omit<Condition, "holds">, facts: Facts): string {
  const { contained, risks, tool, input } = facts;
  const found = risks?.map((kind) => riskName(kind)).join(", ");
  const fields = new Map(inputs.map(({ path }) => [pathText(path), path]));
  return [
    ...(names.has("contained") && contained !== true
      ? [contained === undefined ? "contained is unknown here" : `contained is false: it ${contained}`]
      : []),
    ...(names.has("risk") ? [found === undefined ? "risk is unknown here" : `risk is [${found}]`] : []),
    ...(names.has("tool") ? [tool === undefined ? "tool is unknown here" : `tool is ${JSON.stringify(tool)}`] : []),
    ...(names.has("input") && input === undefined ? ["input is unknown here"] : []),
    ...(input ? [...fields].map(([text, path]) => `${text} is ${shown(fieldOf(input, path))}`) : []),
  ].join("; ");
}

/** Writes the path of a field as a condition does. */
export function pathText(path: InputUse["path"]): string {
  const keys = path.map((key) =>
    typeof key === "string" && /^[A-Za-z_]\w*$/.test(key) ? `.${key}` : `[${JSON.stringify(key)}]`,
  );
  return `input${keys.join("")}`;
}

function shown(value: JsonValue | undefined): string {
  if (value === undefined) return "missing";
  if (typeof value === "object" && value !== null)
    return Array.isArray(value) ? `a list of ${value.length}` : "an object";
  const text = typeof value === "string" ? JSON.stringify(value.slice(0, 100)) : String(value);
  return visibleLine(typeof value === "string" && value.length > 100 ? `${text}…` : text);
}
