import { ToolFailure } from "../../tool/errors.ts";
import type { PlanContext } from "../../tool/tool.ts";
import type { PathHandle } from "../../tool/workspace.ts";
import { plain } from "../fs/apply-edit.ts";
import { compare, type FileChange, linesWithEnds } from "../fs/diff.ts";
import {
  changedSinceApproval,
  contentOf,
  type ExistingFile,
  openTarget,
  readExisting,
  readKnown,
  versionOf,
} from "../fs/existing-file.ts";
import {
  createLineSearch,
  createSearchSteps,
  type FindLines,
  type LineForm,
  type SearchSteps,
} from "../fs/search-text.ts";
import type { Chunk, FilePatch } from "./parse-patch.ts";

/** A section of a patch with resolved paths. */
export interface PatchTarget {
  patch: FilePatch;
  path: PathHandle;
  /** New path of a file that moves. */
  to: PathHandle | undefined;
}

/** The verified change of one file. */
export interface PatchStep {
  target: PatchTarget;
  /** Present version of the file; undefined for a new one. */
  before: ExistingFile | undefined;
  /** Path of the new content. */
  place: PathHandle;
  /** Undefined for a file that is deleted. */
  content: Buffer | undefined;
  change: FileChange;
  ignoring: readonly string[];
}

/** Reads all files and makes the steps; throws one error that lists everything that cannot be done. */
export async function verifyPatch(targets: readonly PatchTarget[], reads: PlanContext["reads"]): Promise<PatchStep[]> {
  const steps = createSearchSteps();
  const results = await Promise.allSettled(targets.map((target) => verifyOne(target, reads, steps)));
  const failures = results.flatMap((result) => (result.status === "rejected" ? [result.reason] : []));
  const unexpected = failures.find((failure) => !(failure instanceof ToolFailure));
  if (unexpected !== undefined) throw unexpected;
  if (failures.length > 0) {
    const messages = failures.map((failure: ToolFailure) => failure.message);
    throw new ToolFailure(`apply_patch verification failed, and nothing was changed:\n${messages.join("\n")}`);
  }
  return results.flatMap((result) => (result.status === "fulfilled" ? [result.value] : []));
}

async function verifyOne(target: PatchTarget, reads: PlanContext["reads"], steps: SearchSteps): Promise<PatchStep> {
  const { patch, path, to } = target;
  using file = openTarget(path);
  if (patch.kind === "add") {
    if (file !== undefined) throw new ToolFailure(`${path.absolute} exists already: use *** Update File.`);
    const change = compare(path.pattern, undefined, patch.content);
    return { target, before: undefined, place: path, content: Buffer.from(patch.content), change, ignoring: [] };
  }
  if (file === undefined) throw new ToolFailure(`File not found: ${path.absolute}`);
  const before = await readKnown(path, () => contentOf(path, file), reads);
  if (patch.kind === "delete") {
    const isText = before.isUtf8 && before.text !== undefined;
    const change = isText ? compare(path.pattern, before, "") : { diff: "", additions: 0, deletions: 0 };
    const deleted = { ...change, diff: `deleted ${path.pattern}\n${change.diff}` };
    return { target, before, place: path, content: undefined, change: deleted, ignoring: [] };
  }
  using other = to && openTarget(to);
  if (to !== undefined && other !== undefined) {
    throw new ToolFailure(`${to.absolute} exists already: delete it first, or move the file elsewhere.`);
  }
  if (before.text === undefined) throw new ToolFailure(`${path.absolute} is too large to patch (over 16 MiB).`);
  if (!before.isUtf8) throw new ToolFailure(`${path.absolute} is not UTF-8 text, so patching it would damage it.`);
  const { text, ignoring } = applyChunks(path.absolute, before.text, patch.chunks, steps);
  const place = to ?? path;
  const { diff, ...counts } = compare(place.pattern, before, text);
  const moved = to === undefined ? "" : `rename from ${path.pattern}\nrename to ${to.pattern}\n`;
  const change = { ...counts, diff: moved + diff };
  return { target, before, place, content: Buffer.from(before.mark + text), change, ignoring };
}

/** Lists the versions of the files that the steps change. */
export const versionsOf = (steps: readonly PatchStep[]) => steps.map(({ before }) => versionOf(before));

/** Throws unless the files still have these versions. */
export async function checkVersions(targets: readonly PatchTarget[], versions: readonly string[]): Promise<void> {
  for (const [index, { path }] of targets.entries()) {
    if (versionOf(await readExisting(path)) !== versions[index]) throw changedSinceApproval(path);
  }
}

/** A text after its patch. */
interface Patched {
  text: string;
  /** Differences that were ignored to find chunks, for the model. */
  ignoring: string[];
}

/**
 * Applies chunks to a text, in the order of its lines. Throws `ToolFailure` unless each chunk matches in exactly one place. Only
 * removed and added lines change, even if context lines differ slightly from the file.
 */
export function applyChunks(
  path: string,
  text: string,
  chunks: readonly Chunk[],
  steps: SearchSteps = createSearchSteps(),
): Patched {
  const lines = linesWithEnds(text);
  const texts = lines.map(withoutEnd);
  const file = { path, lines: texts, find: createLineSearch(path, texts, steps) };
  const patched: string[] = [];
  const ignoring = new Set<string>();
  // A new line ends like the one before it, or like the first line of the file.
  let end = endOf(lines[0] ?? "") || "\n";
  let done = 0;
  const keep = (to: number) => {
    for (; done < to; done++) {
      const line = lines[done] ?? "";
      end = endOf(line) || end;
      patched.push(line);
    }
  };
  const add = (text: string) => {
    const last = patched.at(-1);
    if (last !== undefined && endOf(last) === "") patched[patched.length - 1] = last + end;
    patched.push(text + end);
  };
  for (const chunk of chunks) {
    const place = findPlace(file, chunk, done);
    if (place.ignoring !== undefined) ignoring.add(place.ignoring);
    keep(place.at);
    for (const { sign, text } of chunk.lines) {
      if (sign === "+") add(text);
      else if (sign === " ") keep(done + 1);
      else done += 1;
    }
  }
  const isOpenEnd = chunks.at(-1)?.isOpenEnd === true && done === lines.length;
  keep(lines.length);
  const last = patched.pop() ?? "";
  return { text: patched.join("") + (isOpenEnd ? withoutEnd(last) : last), ignoring: [...ignoring] };
}

const endOf = (line: string) => (line.endsWith("\r\n") ? "\r\n" : line.endsWith("\n") ? "\n" : "");
const withoutEnd = (line: string) => line.slice(0, line.length - endOf(line).length);

/** A file to which chunks are applied. */
interface PatchedFile {
  path: string;
  /** Its lines without their ends. */
  lines: readonly string[];
  find: FindLines;
}

const exactForm: LineForm = (line) => line;
const contextForm: LineForm = (line) => plain(line).trim();

/** Forms in which lines are compared, the exact one first. */
const comparisons: readonly { form: LineForm; ignoring?: string }[] = [
  { form: exactForm },
  { form: (line) => line.trimEnd(), ignoring: "spaces at the ends of lines" },
  { form: (line) => plain(line).trimEnd(), ignoring: "typographic characters" },
];

function findPlace(file: PatchedFile, chunk: Chunk, done: number): { at: number; ignoring?: string } {
  const { path, lines, find } = file;
  const old = chunk.lines.filter(({ sign }) => sign !== "+").map(({ text }) => text);
  const { from, isUnique } = afterContexts(file, chunk, done);
  if (old.length === 0) return { at: placeOfNew(file, chunk, from, isUnique) };
  for (const { form, ignoring } of comparisons) {
    const all = find(old, form, from);
    const places = chunk.isEndOfFile ? all.filter((at) => at + old.length === lines.length) : all;
    const [at] = places;
    if (at === undefined) continue;
    const found = ignoring === undefined ? {} : { ignoring };
    if (chunk.line !== undefined && places.includes(chunk.line)) return { at: chunk.line, ...found };
    if (places.length === 1 || (chunk.contexts.length > 0 && isUnique)) return { at, ...found };
    throw ambiguous(path, places, old.join("\n"));
  }
  const [earlier] = find(old, exactForm);
  const hint =
    earlier === undefined ? "" : `\nThey occur at line ${earlier + 1}: give the chunks in the order of the file.`;
  throw new ToolFailure(`Failed to find expected lines in ${path}:\n${old.join("\n")}${hint}`);
}

/** Finds the line after the contexts, and reports whether each context occurs only once. */
function afterContexts({ path, find }: PatchedFile, { contexts }: Chunk, done: number) {
  let from = done;
  let isUnique = true;
  for (const context of contexts) {
    const places = find([context], contextForm, from);
    const [at] = places;
    if (at === undefined) throw new ToolFailure(`Failed to find context ${JSON.stringify(context)} in ${path}.`);
    isUnique &&= places.length === 1;
    from = at + 1;
  }
  return { from, isUnique };
}

/** Finds the position of added lines without old ones: the line in the header, after the context, or the end. */
function placeOfNew(
  { path, lines }: PatchedFile,
  { line, contexts, isEndOfFile }: Chunk,
  from: number,
  isUnique: boolean,
): number {
  if (contexts.length > 0 && !isUnique) {
    throw new ToolFailure(
      `The context ${JSON.stringify(contexts.at(-1))} occurs more than once in ${path}. Add lines around it.`,
    );
  }
  if (contexts.length > 0 && !isEndOfFile) return from;
  if (line === undefined || isEndOfFile) return lines.length;
  if (line >= from && line <= lines.length) return line;
  throw new ToolFailure(`${path} has no place for new lines after line ${line}: it has ${lines.length} lines.`);
}

function ambiguous(path: string, places: readonly number[], old: string): ToolFailure {
  const shown = places.slice(0, 10).map((at) => at + 1);
  const more = places.length > shown.length ? ", …" : "";
  return new ToolFailure(
    `These lines occur ${places.length} times in ${path}, at lines ${shown.join(", ")}${more}. Add lines around them, or @@ and a line before them:\n${old}`,
  );
}
