import { execFileSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { declaredNames, type Prose, proseOf, readSource } from "./source.ts";
import { maxQuestionShare, wordExceptions } from "./words-allowed.ts";

const root = resolve(import.meta.dirname, "..");

/** Words that have a better one in the field: emit, notify, again, from scratch, as well as, the caller, outcome. */
const words =
  /\b(?:told|tells?|telling|anew|besides|whoever|heed(?:s|ing)?|nobody's|of its own|what bec[ao]mes? of|its like|looked (?:at|after)|given up)\b|(?<!\b(?:(?:no|any|some|every)(?:thing|where|one|body)|who|what) )\belse\b(?=[.,;:)]|$)/gi;

/** Names of limits begin with `max`; functions emit, notify and handle. */
const names = /^(?:(?:most|largest|longest)[A-Z]|(?:told|tells?|telling|heeds?|anew)(?![a-z]))/;

const questions = /^(?:What|Whose|Whether|Who|Which|Why|How|Where)\b/;

/** A place where a text breaks the rules of language. */
export interface Finding {
  readonly tree: string;
  readonly file: string;
  readonly line: number;
  readonly word: string;
  readonly context: string;
}

/** Reads the prose of the repository's own files, with findings and counts of doc comments for each tree. */
export function lintWords() {
  const findings: Finding[] = [];
  const questionComments: Finding[] = [];
  const docComments: Record<string, number> = {};
  const unused = new Set(wordExceptions);
  for (const file of listFiles()) {
    const tree = file.includes("/") ? file.slice(0, file.indexOf("/")) : "top";
    const { prose, declared } = readFile(file);
    for (const { line, text, isDocComment } of prose) {
      if (isDocComment) docComments[tree] = (docComments[tree] ?? 0) + 1;
      const place = { tree, file, line };
      const [question] = (isDocComment && questions.exec(text)) || [];
      if (question !== undefined) questionComments.push({ ...place, word: question, context: text.slice(0, 80) });
      for (const { 0: word, index } of text.matchAll(words)) {
        const exception = wordExceptions.find((each) => each.file === file && text.includes(each.text));
        if (exception !== undefined) unused.delete(exception);
        else findings.push({ ...place, word, context: around(text, index) });
      }
    }
    for (const { line, name } of declared) {
      if (names.test(name)) findings.push({ tree, file, line, word: name, context: "a name" });
    }
  }
  return { findings, questionComments, docComments, unused: [...unused] };
}

/** Lists the findings, the doc comments of trees with too many question words, and exceptions that are no longer needed. */
export function wordProblems({ findings, questionComments, docComments, unused }: ReturnType<typeof lintWords>) {
  const show = ({ file, line, word, context }: Finding) => `${file}:${line}: ${word}: ${context}`;
  const problems = findings.map(show);
  for (const [tree, comments] of Map.groupBy(questionComments, (comment) => comment.tree)) {
    const max = Math.floor((docComments[tree] ?? 0) * maxQuestionShare);
    if (comments.length <= max) continue;
    problems.push(`${tree}: ${comments.length} doc comments begin with a question word, at most ${max} may:`);
    problems.push(...comments.map(show));
  }
  for (const { file, text } of unused) problems.push(`exception no longer needed: ${file}: ${text}`);
  return problems;
}

function listFiles(): string[] {
  const listed = execFileSync("git", ["ls-files", "--cached", "--others", "--exclude-standard"], { cwd: root });
  return listed
    .toString()
    .split("\n")
    .filter((file) => /\.(?:tsx?|lua|proto|md|css|sh|py|go)$|^\.ci\/run$/.test(file))
    .filter((file) => !file.startsWith("gen/") && !file.startsWith("test/words") && existsSync(join(root, file)));
}

function readFile(file: string): { prose: Prose[]; declared: { line: number; name: string }[] } {
  if (/\.tsx?$/.test(file)) {
    const source = readSource(root, file);
    return { prose: proseOf(source), declared: declaredNames(source) };
  }
  const lines = readFileSync(join(root, file), "utf8").split("\n");
  const comment = commentPattern(file);
  const prose = lines.flatMap((line, index) => {
    const text = comment.exec(line)?.[1];
    return text === undefined ? [] : [{ line: index + 1, text, isDocComment: false }];
  });
  return { prose, declared: [] };
}

/** Matches the part of a line that is prose; all of it in a page of documentation. */
function commentPattern(file: string): RegExp {
  if (file.endsWith(".md")) return /(.*)/;
  if (file.endsWith(".lua")) return /--(.*)/;
  if (/\.(?:proto|go)$/.test(file)) return /\/\/(.*)/;
  return file.endsWith(".css") ? /\/\*(.*)/ : /#(.*)/;
}

const around = (text: string, index: number) => text.slice(Math.max(0, index - 40), index + 50).replaceAll(/\s+/g, " ");

if (import.meta.main) {
  const problems = wordProblems(lintWords());
  for (const problem of problems) console.error(problem);
  if (problems.length > 0) process.exitCode = 1;
}
