import { basename, dirname, join } from "node:path";
import type { ViewFile } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { visibleLine } from "../core/visible.ts";
import { mergeRisks, risksOfCommands } from "../policy/risk.ts";
import type { CodeFile, PlacedCode } from "../policy/shell/code.ts";
import { isSimpleLine, type Readings, readCommands } from "../policy/shell/command.ts";
import type { RiskFound } from "../policy/shell/effects.ts";
import { readBoundFile, readSmall } from "./bound-files.ts";

/** A file that runs, to whose content an approval is bound. */
export interface CodeText extends PlacedCode, Pick<ViewFile, "sha256" | "lines"> {}

/** Characters of code that are searched for risks, and those that are read at a time. */
const maxRiskLength = 32_768;
const maxPieceLength = 4_096;

/**
 * Finds risks in shell scripts, in the scripts of a package.json and in recipes of a Makefile, each with the name of its file. It reads
 * the content to which the approval is bound, and no more than the first 32 KiB: `isWhole` is false if there is more.
 */
export async function risksOfCode(
  files: readonly CodeText[],
  read: (texts: readonly string[]) => Promise<Readings>,
): Promise<{ risks: RiskFound[]; isWhole: boolean }> {
  const found: RiskFound[] = [];
  let left = maxRiskLength;
  let isWhole = true;
  for (const file of files) {
    if (!file.scripts && !mayBeShell(file)) continue;
    const text = left > 0 ? (await readBoundFile(file.absolute, file))?.text : undefined;
    if (text === undefined) isWhole = false;
    if (text === undefined) continue;
    if (!file.scripts && !isShell(file, text)) continue;
    const pieces = file.scripts ? linesOf(file, text) : piecesOf(text.slice(0, left));
    if (!file.scripts && text.length > left) isWhole = false;
    for (const piece of pieces) {
      left -= piece.length;
      if (left < 0) {
        isWhole = false;
        break;
      }
      const { commands, risks } = (await read([piece])).get(piece) ?? { commands: readCommands(piece) };
      for (const { kind, parts } of risks ?? risksOfCommands(commands))
        found.push({
          kind,
          parts: parts.map((part) => `${visibleLine(file.external ? file.absolute : file.pattern)}: ${part}`),
        });
    }
  }
  return { risks: mergeRisks(found), isWhole };
}

/** Splits a text between lines. */
function piecesOf(text: string): string[] {
  const pieces: string[] = [];
  let piece = "";
  for (const line of text.split(/(?<=\n)/)) {
    if (piece !== "" && piece.length + line.length > maxPieceLength) {
      pieces.push(piece);
      piece = "";
    }
    piece += line;
  }
  return [...pieces, piece];
}

/** Names of files that another program than a shell reads, unless the line names a shell. */
const foreignCode =
  /\.([cm]?[jt]sx?|py|rb|p[lm]|php|lua|jl|r|ps1|awk|sed|jq|json|ya?ml|toml|ini|cfg|gradle|kts|mk|patch|diff)$/i;

const mayBeShell = ({ use, pattern, ...file }: CodeText) =>
  file.isShell || /\.\w*sh$/.test(pattern) || (use !== "build" && use !== "patch" && !foreignCode.test(pattern));

function isShell({ use, pattern, ...file }: CodeText, text: string): boolean {
  if (file.isShell) return true;
  const interpreter = /^#!.*/.exec(text)?.[0];
  if (interpreter !== undefined) return /\b[a-z]*sh\b/.test(interpreter);
  return use !== "startup" || /\.\w*sh$/.test(pattern);
}

/** Adds the files that scripts of a package.json, or recipes, run, as far as their lines are short; `unread` names what is too large. */
export async function withScripts(
  files: readonly PlacedCode[],
): Promise<{ files: PlacedCode[]; unread: readonly string[] }> {
  const unread: string[] = [];
  const added = files.map(async (file): Promise<PlacedCode[]> => {
    const { absolute, pattern, external, scripts } = file;
    if (!scripts) return [file];
    const text = await readSmall(absolute, maxScriptsBytes);
    if (text === undefined) unread.push(visibleLine(pattern));
    const lines = linesOf(file, text ?? "");
    return [
      file,
      ...lines
        .flatMap(codeOf)
        .filter(({ glob, path }) => !glob && !path.startsWith("/"))
        .map(({ path, use, isShell = false }) => ({
          ...{ absolute: join(dirname(absolute), path), pattern: join(dirname(pattern), path), external, use },
          ...(isShell && { isShell }),
        })),
    ];
  });
  return { files: (await Promise.all(added)).flat(), unread };
}

/** Bytes of a Makefile or package.json up to which it is read. */
const maxScriptsBytes = 512 * 1024;

const codeOf = (line: string): CodeFile[] =>
  isSimpleLine(line) ? readCommands(line).flatMap(({ code }) => [...code.files]) : [];

/** Returns the command lines of a package.json, Makefile or justfile that run. */
function linesOf({ pattern, scripts = [] }: PlacedCode, text: string): string[] {
  return basename(pattern) === "package.json" ? scriptsIn(text, scripts) : recipesIn(text, scripts);
}

/** Returns the scripts of these names in a package.json, with the scripts that they run. */
function scriptsIn(text: string, names: readonly string[]): string[] {
  const scripts = parseScripts(text);
  const wanted = new Set(names);
  // The set grows in the loop.
  for (const name of wanted) {
    const line = scripts.get(name);
    if (line === undefined) wanted.delete(name);
    else
      for (const { path, scripts = [] } of codeOf(line))
        if (path === "package.json") scripts.forEach(wanted.add, wanted);
  }
  return [...wanted].flatMap((name) => scripts.get(name) ?? []);
}

function parseScripts(text: string): Map<string, string> {
  try {
    const { scripts = {} } = JSON.parse(text);
    return new Map(Object.entries(scripts).filter((entry): entry is [string, string] => typeof entry[1] === "string"));
  } catch {
    return new Map();
  }
}

/**
 * Returns the recipes of these targets in a Makefile or justfile, and of the targets that they need; without one, of the first. Variables
 * that are set to a text are replaced by it, also in the text of another one.
 */
function recipesIn(text: string, targets: readonly string[]): string[] {
  const variables = new Map<string, string>();
  let left = maxRiskLength;
  const expanded = (line: string) =>
    line.replaceAll(/\$(?:\((\w+)\)|\{(\w+)\})/g, (_, one, name = one) => {
      const value = variables.get(name);
      left -= value?.length ?? 0;
      return value === undefined || left < 0 ? `\${${name}}` : value;
    });
  const rules = new Map<string, { needs: string[]; recipe: string[] }>();
  let now: { needs: string[]; recipe: string[] }[] = [];
  for (const line of text.replaceAll("\\\n", " ").split("\n")) {
    const [, command] = /^[ \t]+[@+-]*(.+)/.exec(line) ?? [];
    for (const { recipe } of command === undefined ? [] : now) recipe.push(command ?? "");
    const [, name = "", value = ""] = /^(\w+)\s*[:?+]*=\s*(.*)/.exec(line) ?? [];
    if (name !== "") variables.set(name, expanded(value));
    const [, names = "", needs = "", first] = /^([^\s#:=][^:=#]*)::?(?!=)([^#;]*)(?:;(.*))?/.exec(line) ?? [];
    if (names === "") continue;
    now = wordsOf(names).map((name) => {
      const rule = rules.get(name) ?? { needs: [], recipe: [] };
      rule.needs.push(...wordsOf(needs));
      if (first !== undefined) rule.recipe.push(first);
      rules.set(name, rule);
      return rule;
    });
  }
  const known = targets.filter((name) => rules.has(name));
  const wanted = new Set(
    known.length > 0 ? known : [...rules.keys()].filter((name) => !name.startsWith(".")).slice(0, 1),
  );
  for (const name of wanted) for (const need of rules.get(name)?.needs ?? []) wanted.add(need);
  return [...wanted].flatMap((name) => {
    const recipe = rules.get(name)?.recipe.join("\n") ?? "";
    return recipe === "" ? [] : [expanded(recipe).replaceAll("$$", "$")];
  });
}

const wordsOf = (text: string) => text.split(/\s+/).filter((word) => word !== "");
