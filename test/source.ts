import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { parseAst } from "vite";

/** A node of the syntax tree, as the parser returns it. */
interface Node {
  readonly type: string;
  readonly start: number;
  readonly end: number;
  readonly [key: string]: unknown;
}

/** A piece of prose in a source file, with the line that it starts at. */
export interface Prose {
  readonly line: number;
  readonly text: string;
  readonly isDocComment: boolean;
}

/** One TypeScript file with its syntax tree. */
export interface Source {
  readonly file: string;
  readonly text: string;
  readonly tree: Node;
}

/** Lists the TypeScript files below `folder`, relative to it, in order. */
export function listSources(folder: string): string[] {
  return readdirSync(folder, { recursive: true, encoding: "utf8" })
    .filter((file) => /\.tsx?$/.test(file) && !file.includes("node_modules/"))
    .toSorted();
}

export function readSource(folder: string, file: string): Source {
  const text = readFileSync(join(folder, file), "utf8");
  const tree = parseAst(text, { lang: file.endsWith("x") ? "tsx" : "ts" });
  return { file, text, tree: tree as unknown as Node };
}

/** Lists the files that `source` imports or re-exports, relative to `folder`, including type-only imports. */
export function importsOf(folder: string, source: Source): string[] {
  const paths: string[] = [];
  visit(source.tree, (node) => {
    const from = isNode(node.source) ? node.source.value : undefined;
    if (typeof from === "string" && from.startsWith(".")) {
      paths.push(relative(folder, resolve(folder, dirname(source.file), from)));
    }
  });
  return paths;
}

/** Finds circles of imports. Each file of a circle imports the next and the last the first, which sorts first. */
export function findCircles(imports: ReadonlyMap<string, readonly string[]>): string[][] {
  const circles: string[][] = [];
  const done = new Set<string>();
  const path: string[] = [];
  const walk = (file: string) => {
    const begin = path.indexOf(file);
    if (begin >= 0) circles.push(fromFirst(path.slice(begin)));
    if (begin >= 0 || done.has(file)) return;
    path.push(file);
    for (const next of imports.get(file) ?? []) walk(next);
    path.pop();
    done.add(file);
  };
  for (const file of imports.keys()) walk(file);
  return circles;
}

/** Lists the names that `source` declares and exports; re-exports do not count. */
export function exportsOf(source: Source): string[] {
  const names: string[] = [];
  for (const statement of source.tree.body as Node[]) {
    if (statement.type !== "ExportNamedDeclaration" || statement.source !== null) continue;
    const declaration = statement.declaration as Node | null;
    const declared = (declaration?.declarations ?? (declaration === null ? [] : [declaration])) as Node[];
    names.push(...declared.map(({ id }) => nameOf(id) ?? ""));
    names.push(...(statement.specifiers as Node[]).map(({ exported }) => nameOf(exported) ?? ""));
  }
  return [...new Set(names)].filter((name) => name !== "");
}

/**
 * Lists the names of variables that outlive a call: those declared with `let` outside of functions, and collections declared there
 * that a function changes. Tables that are filled while the file is loaded do not count.
 */
export function moduleState(source: Source): string[] {
  const variables = (source.tree.body as Node[])
    .map((statement) => (isNode(statement.declaration) ? statement.declaration : statement))
    .filter(({ type }) => type === "VariableDeclaration");
  const named = (kind: (variable: Node) => boolean, wanted: (declared: Node) => boolean) =>
    variables
      .filter(kind)
      .flatMap(({ declarations }) => (declarations as Node[]).filter(wanted).map(({ id }) => nameOf(id) ?? ""));
  const variable = named(
    ({ kind }) => kind !== "const",
    () => true,
  );
  const collections = named(
    ({ kind }) => kind === "const",
    ({ init }) => isCollection(init),
  );
  const changed = new Set<string>();
  const see = (node: Node, depth: number) => {
    const inner = depth + (/Function/.test(node.type) ? 1 : 0);
    if (inner > 0) for (const name of changedBy(node)) changed.add(name);
    for (const child of childrenOf(node)) see(child, inner);
  };
  see(source.tree, 0);
  return [...variable, ...collections.filter((name) => changed.has(name))];
}

const isCollection = (value: unknown): boolean =>
  isNode(value) &&
  (/^(Array|Object)Expression$/.test(value.type) ||
    (value.type === "NewExpression" && /^(Weak)?(Map|Set)$|^Array$/.test(nameOf(value.callee) ?? "")));

/** Returns the names of the objects that an expression changes. */
function changedBy({ type, left, argument, operator, callee }: Node): string[] {
  const place = { AssignmentExpression: left, UpdateExpression: argument, UnaryExpression: argument }[type];
  const isCall = type === "CallExpression" && isNode(callee) && changing.test(nameOf(callee.property) ?? "");
  const member = isCall ? callee : type === "UnaryExpression" && operator !== "delete" ? undefined : place;
  const object = isNode(member) && member.type === "MemberExpression" ? nameOf(member.object) : undefined;
  return object === undefined ? [] : [object];
}

const changing = /^(set|add|delete|clear|push|pop|shift|unshift|splice|sort|reverse|fill)$/;

/** Lists the names that `source` declares: variables, parameters, functions, types and members. */
export function declaredNames(source: Source): { line: number; name: string }[] {
  const names: { line: number; name: string }[] = [];
  const lineAt = lineFinder(source.text);
  const add = (value: unknown) => {
    const name = nameOf(value);
    if (name !== undefined) names.push({ line: lineAt((value as Node).start), name });
  };
  visit(source.tree, (node) => {
    add(node.id);
    if (node.type !== "MemberExpression") add(node.key);
    for (const parameter of (node.params ?? []) as Node[]) add(parameter);
  });
  return names;
}

/** Lists comments, string literals that hold a space, template texts and text between tags. */
export function proseOf(source: Source): Prose[] {
  const prose: Prose[] = [];
  const lineAt = lineFinder(source.text);
  // The texts become blanks, so that what looks like a comment inside of one is none.
  const code = source.text.split("");
  visit(source.tree, (node) => {
    const isText = ["Literal", "TemplateElement", "JSXText"].includes(node.type);
    if (!isText) return;
    for (let at = node.start; at < node.end; at++) if (code[at] !== "\n") code[at] = " ";
    const value = node.type === "TemplateElement" ? (node.value as { raw: string }).raw : node.value;
    if (typeof value !== "string" || !value.includes(" ")) return;
    prose.push({ line: lineAt(node.start), text: value, isDocComment: false });
  });
  for (const { 0: comment, index } of code.join("").matchAll(/\/\*[\s\S]*?\*\/|\/\/.*/g)) {
    const text = comment.replaceAll(/^\s*(?:\/\*+|\*\/|\*|\/\/+)|\*\/$/gm, "").trim();
    prose.push({ line: lineAt(index), text, isDocComment: comment.startsWith("/**") });
  }
  return prose;
}

function fromFirst(circle: readonly string[]): string[] {
  const first = circle.indexOf(circle.toSorted()[0] ?? "");
  return [...circle.slice(first), ...circle.slice(0, first)];
}

const isNode = (value: unknown): value is Node =>
  typeof value === "object" && value !== null && typeof (value as Node).type === "string";

function nameOf(value: unknown): string | undefined {
  return isNode(value) && typeof value.name === "string" ? value.name : undefined;
}

/** Returns a function that finds the line of an offset in `text`, by halving. */
function lineFinder(text: string): (offset: number) => number {
  const starts = [0, ...Array.from(text.matchAll(/\n/g), ({ index }) => index + 1)];
  return (offset) => {
    let low = 0;
    let high = starts.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if ((starts[middle] ?? 0) <= offset) low = middle;
      else high = middle;
    }
    return low + 1;
  };
}

function visit(node: Node, see: (node: Node) => void): void {
  see(node);
  for (const child of childrenOf(node)) visit(child, see);
}

/** Lists the nodes that a node names, alone or in lists. The check of words spent a third of its time in `flat` and `filter`. */
function childrenOf(node: Node): Node[] {
  const children: Node[] = [];
  for (const name in node) {
    const value = node[name];
    if (Array.isArray(value)) {
      for (const each of value) if (isNode(each)) children.push(each);
    } else if (isNode(value)) children.push(value);
  }
  return children;
}
