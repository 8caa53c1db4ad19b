import {
  type Assignment,
  forEachChild,
  parse,
  type Redirect,
  type Redirection,
  type Script,
  type Statement,
  type SyntaxNode,
  type Word,
} from "unbash";
import { type CommandLine, dropped, type Join, Opaque, type SimpleCommand } from "./line.ts";

/**
 * Reads a line with a parser that shares no code with ours, and throws `Opaque` unless both found the same. Where they
 * differ, one of them is wrong about bash, and it is unknown which.
 */
export function confirm(line: CommandLine, text: string): void {
  const script = parse(text);
  if ((script.errors ?? []).length > 0) throw new Opaque("something that a second parser does not understand");
  const first = line.commands.flatMap(({ join, command }) => [join, ...factsOf(command)]);
  const second = joined(script).flatMap(({ join, node }) => [join, ...factsOfNode(node, text)]);
  const agree = first.length === second.length && first.every((fact, i) => fact === second[i]);
  if (!agree) throw new Opaque("something that two parsers read differently");
}

/** Commands and files that a line mentions anywhere, also in parts that are not understood. */
export interface Mentioned {
  /** The words of each command. */
  commands: string[][];
  /** Files from which a redirect reads. */
  sources: string[];
  /** Files to which a redirect writes. */
  targets: string[];
  /** False if the line may mention more. */
  isWhole: boolean;
}

/** Finds what an opaque line mentions. It can only make a decision stricter. */
export function mentionedIn(text: string): Mentioned {
  const commands: string[][] = [];
  const sources: string[] = [];
  const targets: string[] = [];
  const visit = (node: SyntaxNode) => {
    if (node.type === "Command" && node.name) commands.push([node.name, ...node.args].map(textOf));
    if (node.type === "Redirect" && node.target && isWrite(node)) targets.push(textOf(node.target));
    if (node.type === "Redirect" && node.target && node.operator === "<") sources.push(textOf(node.target));
    if (commands.length < maxCommands) forEachChild(node, visit);
  };
  let isWhole = text.length <= maxCharacters;
  try {
    if (isWhole) visit(parse(text));
  } catch {
    isWhole = false;
  }
  return { commands, sources, targets, isWhole: isWhole && commands.length < maxCommands };
}

function textOf(word: Word | Assignment): string {
  return word.type === "Word" ? word.value : word.text;
}

function isWrite({ operator, target }: Redirect): boolean {
  return operator.includes(">") && !dropped(operator, target?.value ?? "") && !/^\d+$|^-$/.test(target?.value ?? "");
}

const maxCharacters = 8_192;
const maxCommands = 256;

function factsOf({ assignments, words, redirects, input }: SimpleCommand): string[] {
  return [
    ...assignments.map(({ name, value }) => `assign ${name}=${value}`),
    ...words.map(({ value }) => `word ${value}`),
    ...redirects.map(({ operator, descriptor, target }) => `redirect ${descriptor}${operator} ${target}`),
    ...(input === undefined ? [] : [`input ${input}`]),
  ];
}

function joined(script: Script): { join: Join; node: SyntaxNode }[] {
  return script.commands.flatMap((statement) => ofStatement(statement));
}

function ofStatement({ command, background }: Statement): { join: Join; node: SyntaxNode }[] {
  if (background) throw new Opaque("a background command");
  if (command.type !== "AndOr") return ofPipeline(";", command);
  return command.commands.flatMap((node, i) => ofPipeline(i === 0 ? ";" : (command.operators[i - 1] ?? ";"), node));
}

function ofPipeline(join: Join, node: SyntaxNode): { join: Join; node: SyntaxNode }[] {
  if (node.type !== "Pipeline") return [{ join, node }];
  if (node.prefixes.length > 0 || node.operators.includes("|&")) throw new Opaque("a pipeline with something special");
  return node.commands.map((stage, i) => ({ join: i === 0 ? join : "|", node: stage }));
}

function factsOfNode(node: SyntaxNode, text: string): string[] {
  if (node.type !== "Command" || !node.name) throw new Opaque("something that a second parser calls no simple command");
  const words = [node.name, ...node.args].map((word) =>
    word.type === "Word" ? textIn(word) : text.slice(word.pos, word.end),
  );
  const assignments = node.prefix.flatMap((item) => (item.type === "Assignment" ? [factOfAssignment(item)] : []));
  const redirects = node.redirects.map(factOfRedirect);
  return [
    ...assignments,
    ...words.map((word) => `word ${word}`),
    ...redirects.filter((fact) => fact.startsWith("redirect")),
    ...redirects.filter((fact) => fact.startsWith("input")),
  ];
}

function factOfAssignment({ name, value, append, index }: Assignment): string {
  if (value.type !== "Word" || append || index) throw new Opaque("an assignment to a part of a variable");
  return `assign ${name}=${textIn(value)}`;
}

/** Returns the text of a word, in which a quoted here-document that `cat` alone prints stands for its text. */
function textIn({ value, parts = [] }: Word): string {
  if (!value.includes("$(cat")) return value;
  const inner = parts.flatMap((part) => (part.type === "DoubleQuoted" ? part.parts : []));
  return inner.reduce((text, part) => {
    const printed = part.type === "CommandExpansion" ? printedBy(part.script) : undefined;
    return printed === undefined ? text : text.replace(part.text, () => printed);
  }, value);
}

function printedBy(script: Script | undefined): string | undefined {
  const [statement, ...others] = script?.commands ?? [];
  const command = statement?.command;
  if (command?.type !== "Command" || command.name?.value !== "cat" || others.length > 0) return undefined;
  const [document, ...more] = [...command.args, ...command.prefix, ...command.redirects];
  if (document?.type !== "HereDoc" || more.length > 0) return undefined;
  return factOfRedirect(document).slice("input ".length).replace(/\n+$/, "");
}

/** Describes a redirect; empty for one that only joins or drops streams. */
function factOfRedirect(redirect: Redirection): string {
  if (redirect.type === "HereString") return `input ${redirect.target?.value}\n`;
  if (redirect.type === "HereDoc") {
    if (!redirect.delimiter?.quoted || redirect.operator !== "<<") throw new Opaque("a here-document of another kind");
    return `input ${redirect.body.text}`;
  }
  const { operator, descriptor } = redirect;
  const target = redirect.target?.value ?? "";
  if (dropped(operator, target)) return "";
  const digit = descriptor?.type === "FileDescriptor" ? String(descriptor.value) : (descriptor?.name ?? "");
  return `redirect ${digit}${operator} ${target}`;
}
