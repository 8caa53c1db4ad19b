import { RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";

/** What conditions of rules may use of an ask. A fact that is absent is unknown. */
export interface Facts {
  /** True if the sandbox keeps all effects of the command line in the workspace and in private files; otherwise the reason. */
  contained?: true | string;
  /** The kinds of risk of the call. */
  risks?: readonly RiskKind[];
}

/** The condition of a rule. */
export interface Condition {
  /** Evaluates it; undefined if that is unknown. */
  holds(facts: Facts): boolean | undefined;
  /** Names the facts that it uses. */
  readonly names: ReadonlySet<string>;
}

/** A condition that cannot be read; the message says what and why. */
export class ConditionError extends Error {
  override name = "ConditionError";
}

const maxBytes = 1_024;
const maxNodes = 64;

/** Reads a condition. Throws `ConditionError`. It has no loops and no patterns, so evaluation takes as many steps as it has parts. */
export function readCondition(text: string): Condition {
  if (Buffer.byteLength(text) > maxBytes) throw new ConditionError(`has over ${maxBytes} bytes`);
  const tokens = tokensOf(text);
  const names = new Set<string>();
  let [at, nodes] = [0, 0];
  const peek = () => tokens[at] ?? "";
  const take = (token: string) => peek() === token && ++at > 0;
  const made = (node: Node): Node => {
    nodes += 1;
    if (nodes > maxNodes) throw new ConditionError(`has over ${maxNodes} parts`);
    return node;
  };
  function expectToken(token: string): void {
    if (!take(token)) throw new ConditionError(`expects ${token} ${peek() === "" ? "at its end" : `before ${peek()}`}`);
  }
  function either(): Node {
    let left = both();
    while (take("||")) {
      const [one, other] = [left, both()];
      left = made((facts) => anyOf(truth(one(facts)), () => truth(other(facts))));
    }
    return left;
  }
  function both(): Node {
    let left = inverse();
    while (take("&&")) {
      const [one, other] = [left, inverse()];
      left = made((facts) => not(anyOf(not(truth(one(facts))), () => not(truth(other(facts))))));
    }
    return left;
  }
  function inverse(): Node {
    if (!take("!")) return comparison();
    nodes += 1;
    const inner = nested(inverse);
    return made((facts) => not(truth(inner(facts))));
  }
  function comparison(): Node {
    const left = value();
    const operator = Object.hasOwn(operators, peek()) ? operators[peek()] : undefined;
    if (!operator) return left;
    at += 1;
    const right = value();
    return made((facts) => applied(operator, left(facts), right(facts)));
  }
  function nested(read: () => Node): Node {
    nodes += 1;
    if (nodes > maxNodes) throw new ConditionError(`has over ${maxNodes} parts`);
    return read();
  }
  function value(): Node {
    const token = peek();
    at += 1;
    if (token === "(") {
      const inner = nested(either);
      expectToken(")");
      return inner;
    }
    if (token === "[") {
      const items: Node[] = [];
      while (!take("]")) {
        items.push(nested(value));
        if (peek() !== "]") expectToken(",");
      }
      return made((facts) => items.map((item) => item(facts)));
    }
    if (token === "size" && take("(")) {
      const inner = nested(value);
      expectToken(")");
      return made((facts) => sizeOf(inner(facts)));
    }
    if (token === "true" || token === "false") return made(() => token === "true");
    if (/^\d/.test(token)) return made(() => Number(token));
    if (/^['"]/.test(token)) return made(() => token.slice(1, -1));
    if (token === "contained") {
      names.add(token);
      return made(({ contained }) => (contained === undefined ? undefined : contained === true));
    }
    if (token !== "risk") throw new ConditionError(unknownName(token));
    names.add(token);
    if (!take(".")) return made(({ risks }) => risks?.map(riskName));
    if (!take("only")) throw new ConditionError("expects only([…]) after risk.");
    expectToken("(");
    const allowed = nested(value);
    expectToken(")");
    return made((facts) => applied(isSubset, facts.risks?.map(riskName), allowed(facts)));
  }
  const root = either();
  if (at < tokens.length) throw new ConditionError(`does not end before ${peek()}`);
  checkRiskNames(tokens);
  return { holds: (facts) => truth(root(facts)), names };
}

type Value = boolean | number | string | readonly Value[] | undefined;
type Node = (facts: Facts) => Value;
type Operator = (left: Exclude<Value, undefined>, right: Exclude<Value, undefined>) => boolean | undefined;

const operators: Readonly<Record<string, Operator>> = {
  "==": (left, right) => (typeof left === typeof right && !Array.isArray(left) ? left === right : undefined),
  "!=": (left, right) => (typeof left === typeof right && !Array.isArray(left) ? left !== right : undefined),
  "<": ordered((left, right) => left < right),
  "<=": ordered((left, right) => left <= right),
  ">": ordered((left, right) => left > right),
  ">=": ordered((left, right) => left >= right),
  in: (left, right) => (Array.isArray(right) ? right.includes(left) : undefined),
};

function ordered(compare: (left: number, right: number) => boolean): Operator {
  return (left, right) => (typeof left === "number" && typeof right === "number" ? compare(left, right) : undefined);
}

const isSubset: Operator = (left, right) =>
  Array.isArray(left) && Array.isArray(right) ? left.every((one) => right.includes(one)) : undefined;

function applied(operator: Operator, left: Value, right: Value): boolean | undefined {
  return left === undefined || right === undefined ? undefined : operator(left, right);
}

const sizeOf = (value: Value) => (Array.isArray(value) || typeof value === "string" ? value.length : undefined);
const truth = (value: Value) => (typeof value === "boolean" ? value : undefined);
const not = (value: boolean | undefined) => (value === undefined ? undefined : !value);

/** One that holds settles it, even if the other is unknown. */
function anyOf(one: boolean | undefined, two: () => boolean | undefined): boolean | undefined {
  if (one) return true;
  const other = two();
  return other ? true : one === undefined ? undefined : other;
}

function tokensOf(text: string): string[] {
  const tokens: string[] = [];
  const pattern = /\s*(&&|\|\||==|!=|<=|>=|[!<>()[\],.]|\d+(?:\.\d+)?|[A-Za-z_]\w*|'[^'\\]*'|"[^"\\]*")/y;
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

const unknownName = (token: string) =>
  token === "" ? "ends too early" : `has the unknown name ${token}; known are contained and risk`;

/** The names of the kinds of risk, as conditions spell them. */
const namesOfRisks = new Map<RiskKind, string>(
  Object.entries(RiskKind).flatMap(([name, kind]) => (kind === 0 ? [] : [[kind, name.toLowerCase()]])),
);
const riskKinds: readonly string[] = [...namesOfRisks.values()];
const riskName = (kind: RiskKind) => namesOfRisks.get(kind) ?? String(kind);

/** Refuses texts that name no kind of risk, since a misspelled one would never be found. */
function checkRiskNames(tokens: readonly string[]): void {
  for (const token of tokens.filter((token) => /^['"]/.test(token)))
    if (!riskKinds.includes(token.slice(1, -1)))
      throw new ConditionError(`names the risk ${token}; known are ${riskKinds.join(", ")}`);
}

/** Describes the facts that a condition uses, for people. */
export function describeFacts({ names }: Pick<Condition, "names">, { contained, risks }: Facts): string {
  const found = risks?.map((kind) => riskName(kind)).join(", ");
  return [
    ...(names.has("contained") && contained !== true
      ? [contained === undefined ? "contained is unknown here" : `contained is false: it ${contained}`]
      : []),
    ...(names.has("risk") ? [found === undefined ? "risk is unknown here" : `risk is [${found}]`] : []),
  ].join("; ");
}
