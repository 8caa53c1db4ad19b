import { createHash } from "node:crypto";
import type { Position, TextEdit, WorkspaceEdit } from "vscode-languageserver-protocol";
import { canonicalJson } from "../../core/json.ts";
import { visible } from "../../core/visible.ts";
import { ToolFailure } from "../../tool/errors.ts";
import type { Judge, Plan, PlanContext, ToolContext, ToolResult } from "../../tool/tool.ts";
import type { PathHandle, Workspace } from "../../tool/workspace.ts";
import type { FilePatch } from "../apply-patch/parse-patch.ts";
import {
  asksForSteps,
  carryOut,
  contentHash,
  pathsOfTarget,
  previewOfSteps,
  resultOfSteps,
  writesOf,
} from "../apply-patch/report-steps.ts";
import { checkVersions, type PatchStep, versionsOf } from "../apply-patch/verify-patch.ts";
import type { FileChanges } from "../fs/change-file.ts";
import { compare } from "../fs/diff.ts";
import { type ExistingFile, readExisting } from "../fs/existing-file.ts";
import { type CodePlan, openQuestion } from "./code-call.ts";
import { pathOfUri } from "./documents.ts";
import { type AskedFile, type LanguageClient, notReady, syncFile } from "./language-client.ts";
import type { LanguageServers } from "./language-servers.ts";
import { mayRead } from "./places.ts";

/** The plan of a change that a language server computes. */
export interface EditPlan extends Plan {
  readonly steps: readonly PatchStep[];
  readonly client: LanguageClient | undefined;
  /** Parts of the change that are left out. */
  readonly notes: readonly string[];
}

/** A change as a server returned it, with what is not done of it. */
export interface ComputedEdit {
  readonly edit: WorkspaceEdit | null | undefined;
  readonly notes?: readonly string[];
}

/**
 * Plans a change that the server of a file computes: asks the server until it knows the present content of all files that it
 * changes, and asks `edit` for all of them. An approval is bound to the old and the new content.
 */
export async function planEdit(
  servers: LanguageServers,
  question: CodePlan,
  ctx: Pick<PlanContext, "workspace" | "judge">,
  compute: (client: LanguageClient, file: AskedFile) => Promise<ComputedEdit>,
): Promise<EditPlan> {
  const { title, path } = question;
  // The engine denies the call by its asks, so the server is not asked.
  if (ctx.judge({ permission: "lsp", patterns: [path.pattern], paths: [path.absolute] }).action === "deny")
    return { ...{ title, asks: question.asks, steps: [], notes: [] }, client: undefined };
  const { client, file } = await openQuestion(servers, ctx, { path, asksToStart: false });
  const { steps, notes } = await computeSteps(client, file, ctx, compute);
  const targets = steps.map(({ target }) => target);
  const paths = targets.flatMap(pathsOfTarget);
  return {
    title: steps.length === 0 ? title : `${title}: ${paths.length} ${paths.length === 1 ? "file" : "files"}`,
    // The server runs now, so starting it is no part of what is approved.
    asks: [...path.asks("lsp"), ...(steps.length === 0 ? [] : asksForSteps(targets))],
    binds: paths,
    reveals: paths,
    contentDigest: digestOf(steps),
    ...{ steps, client, notes },
    inspect: async () => ({ preview: () => previewOfSteps(steps) }),
  };
}

async function computeSteps(
  client: LanguageClient,
  file: AskedFile,
  ctx: Pick<PlanContext, "workspace" | "judge">,
  compute: (client: LanguageClient, file: AskedFile) => Promise<ComputedEdit>,
): Promise<{ steps: PatchStep[]; notes: readonly string[] }> {
  for (let round = 0; round < maxRounds; round += 1) {
    const { edit, notes = [] } = await compute(client, file);
    if (edit === null || edit === undefined) return { steps: [], notes };
    // Once a file is open at the server, the server knows what is on disk, whatever it had read before.
    if (await syncFilesOf(client, edit, ctx)) return { steps: await stepsOf(client, edit, ctx), notes };
  }
  throw notReady(client);
}

const maxRounds = 4;

/** Carries out a planned change, all or nothing. Throws `ChangedAfterApproval` if a file has changed since it was planned. */
export async function executeEdit(
  changes: FileChanges,
  { steps, client, notes }: EditPlan,
  { beforeWrite, reads, signal }: Pick<ToolContext, "beforeWrite" | "reads" | "signal">,
): Promise<ToolResult> {
  if (steps.length === 0) return { output: ["No changes", ...notes].join("\n") };
  const targets = steps.map(({ target }) => target);
  const paths = targets.flatMap(pathsOfTarget).map(({ absolute }) => absolute);
  return await changes.inTurns(paths, async () => {
    signal.throwIfAborted();
    await checkVersions(targets, versionsOf(steps));
    const wasRead = await Promise.all(
      steps.map(
        async ({ before, target: { path } }) =>
          before !== undefined && (await reads.get(path.absolute)) === before.sha256,
      ),
    );
    await beforeWrite(steps.flatMap(writesOf));
    await carryOut(steps, changes);
    for (const [index, { place, content }] of steps.entries()) {
      // A file that the model has never seen stays unread.
      if (content !== undefined && wasRead[index]) await reads.record(place.absolute, contentHash(content));
    }
    const { output, metadata } = resultOfSteps(steps);
    return { output: [output, ...notes].join("\n"), metadata: { ...metadata, server: client?.server.name ?? "" } };
  });
}

function digestOf(steps: readonly PatchStep[]): string {
  const contents = steps.map(({ target: { path }, place, content, before }) => [
    ...[path.absolute, place.absolute, before?.sha256 ?? null],
    content === undefined ? null : contentHash(content),
  ]);
  return createHash("sha256").update(canonicalJson(contents)).digest("hex");
}

/** Makes the note about a command of a server, which is not run. */
export const commandNote = (title: string) =>
  `(The command "${visible(title)}" of the language server was not executed: Toolgate runs only what is asked for.)`;

/** Makes the failure of an action that is not possible. */
export const noAction = (why: string) => new ToolFailure(why, { hadNoEffects: true });

const maxFiles = 1_000;

/** Change of one file, in the order of the server. */
type FileOperation =
  | { kind: "edit"; uri: string; version: number | null; edits: readonly TextEdit[] }
  | { kind: "create"; uri: string; overwrite: boolean; ignoreIfExists: boolean }
  | { kind: "rename"; uri: string; to: string }
  | { kind: "delete"; uri: string };

/** A file while the operations are applied to it in memory. */
interface ChangedFile {
  readonly path: PathHandle;
  readonly before: ExistingFile | undefined;
  /** Undefined once it is deleted. */
  text: string | undefined;
  /** The file of its new name, if it is renamed. */
  movedTo?: ChangedFile;
  /** True if it is the new name of another file. */
  isTarget?: true;
}

/** Computes the steps that an edit of a server means. Reads files and changes nothing. */
async function stepsOf(
  client: LanguageClient,
  edit: WorkspaceEdit,
  { workspace, judge }: { workspace: Workspace; judge: Judge },
): Promise<PatchStep[]> {
  const operations = operationsOf(edit);
  const files = new Map<string, ChangedFile>();
  async function open(uri: string): Promise<ChangedFile> {
    const path = await pathIn(uri, workspace, judge);
    const known = files.get(path.absolute);
    if (known !== undefined) return known;
    if (files.size === maxFiles) throw refused(`it changes more than ${maxFiles} files`);
    const before = await readExisting(path);
    if (before !== undefined && (before.text === undefined || !before.isUtf8))
      throw refused(`${path.absolute} is no UTF-8 text of at most 16 MiB`);
    const file: ChangedFile = { path, before, text: before?.text };
    files.set(path.absolute, file);
    return file;
  }
  for (const operation of operations) {
    const file = await open(operation.uri);
    if (operation.kind === "edit") applyEdits(client, file, operation);
    else if (operation.kind === "create") create(file, operation);
    else if (operation.kind === "delete") remove(file);
    else move(file, await open(operation.to));
  }
  return [...files.values()].flatMap(stepOf);
}

function operationsOf({ changes = {}, documentChanges }: WorkspaceEdit): FileOperation[] {
  if (documentChanges === undefined)
    return Object.entries(changes).map(([uri, edits]) => ({ kind: "edit", uri, version: null, edits }));
  return documentChanges.map((change): FileOperation => {
    if (!("kind" in change)) {
      const { uri, version } = change.textDocument;
      const edits = change.edits.map((one) => {
        if ("newText" in one) return one;
        throw refused("it holds a snippet with places to fill in");
      });
      return { kind: "edit", uri, version, edits };
    }
    if (change.kind === "rename") return { kind: "rename", uri: change.oldUri, to: change.newUri };
    if (change.kind === "delete") return { kind: "delete", uri: change.uri };
    const { overwrite = false, ignoreIfExists = false } = change.options ?? {};
    return { kind: "create", uri: change.uri, overwrite, ignoreIfExists };
  });
}

async function pathIn(uri: string, workspace: Workspace, judge: Judge): Promise<PathHandle> {
  const named = pathOfUri(uri);
  if (named === undefined) throw refused(`it changes ${visible(uri)}, which is no file`);
  const path = await workspace.resolve(named);
  if (path.external) throw refused(`it changes ${visible(path.absolute)}, which lies outside the workspace`);
  if (!mayRead(path, judge))
    throw refused(`it changes ${visible(path.pattern)}, which rules do not allow to read without asking`);
  return path;
}

function applyEdits(
  client: LanguageClient,
  file: ChangedFile,
  { edits, version }: { edits: readonly TextEdit[]; version: number | null },
): void {
  const { path, before, text } = file;
  if (text === undefined) throw refused(`it edits ${path.absolute}, which does not exist`);
  const document = client.documents.get(path.absolute);
  if (version !== null && document !== undefined && document.version !== version) throw notReady(client);
  // The content on disk has changed since the server was asked.
  if (document !== undefined && before !== undefined && document.text !== before.text) throw notReady(client);
  file.text = applyTextEdits(path.absolute, text, edits);
}

function create(
  file: ChangedFile,
  { overwrite, ignoreIfExists }: { overwrite: boolean; ignoreIfExists: boolean },
): void {
  if (file.text !== undefined && ignoreIfExists && !overwrite) return;
  if (file.movedTo !== undefined) throw refused(`it creates ${file.path.absolute} again, which it renames`);
  if (file.text !== undefined && !overwrite) throw refused(`it creates ${file.path.absolute}, which exists`);
  file.text = "";
}

function remove(file: ChangedFile): void {
  if (file.text === undefined) throw refused(`it deletes ${file.path.absolute}, which does not exist`);
  file.text = undefined;
}

function move(from: ChangedFile, to: ChangedFile): void {
  if (from.text === undefined) throw refused(`it renames ${from.path.absolute}, which does not exist`);
  if (to.text !== undefined) throw refused(`it renames a file to ${to.path.absolute}, which exists`);
  // A file is renamed once, to a name that was free before: what two files exchange would be lost.
  if (from.isTarget || to.before !== undefined)
    throw refused(`it renames ${from.path.absolute} to ${to.path.absolute}, and one of them in another step too`);
  to.text = from.text;
  from.text = undefined;
  if (from.before === undefined) return;
  from.movedTo = to;
  to.isTarget = true;
}

/** Makes the step of one file; none for a file that stays as it is. */
function stepOf({ path, before, text, movedTo, isTarget }: ChangedFile): PatchStep[] {
  if (isTarget || text === before?.text) return [];
  const step = { before, ignoring: [] };
  if (text !== undefined) {
    const patch: FilePatch =
      before === undefined
        ? { kind: "add", path: path.pattern, content: text }
        : { kind: "update", path: path.pattern, chunks: [] };
    const content = Buffer.from((before?.mark ?? "") + text);
    const change = compare(path.pattern, before, text);
    return [{ ...step, target: { patch, path, to: undefined }, place: path, content, change }];
  }
  if (movedTo?.text !== undefined) {
    const { path: to, text: moved } = movedTo;
    const patch: FilePatch = { kind: "update", path: path.pattern, moveTo: to.pattern, chunks: [] };
    const { diff, ...counts } = compare(to.pattern, before, moved);
    const change = { ...counts, diff: `rename from ${path.pattern}\nrename to ${to.pattern}\n${diff}` };
    const content = Buffer.from((before?.mark ?? "") + moved);
    return [{ ...step, target: { patch, path, to }, place: to, content, change }];
  }
  const { diff, ...counts } = compare(path.pattern, before, "");
  const change = { ...counts, diff: `deleted ${path.pattern}\n${diff}` };
  const patch: FilePatch = { kind: "delete", path: path.pattern };
  return [{ ...step, target: { patch, path, to: undefined }, place: path, content: undefined, change }];
}

/** Opens all files of an edit at the server, in their present content; returns whether it knew all of that before. */
async function syncFilesOf(
  client: LanguageClient,
  edit: WorkspaceEdit,
  { workspace, judge }: { workspace: Workspace; judge: Judge },
): Promise<boolean> {
  let isKnown = true;
  for (const operation of operationsOf(edit)) {
    const path = await pathIn(operation.uri, workspace, judge);
    const before = client.documents.get(path.absolute);
    const exists = (await readExisting(path)) !== undefined;
    if (!exists) continue;
    if ((await syncFile(client, path, workspace.resolve)) !== before) isKnown = false;
  }
  return isKnown;
}

/** Makes the failure of an edit that is not applied. */
function refused(why: string): ToolFailure {
  return new ToolFailure(`The edit of the language server is not applied, since ${why}. Nothing was changed.`, {
    hadNoEffects: true,
  });
}

/** Applies the edits of a server to a text. Throws `ToolFailure` for edits that overlap or lie outside of the text. */
export function applyTextEdits(path: string, text: string, edits: readonly TextEdit[]): string {
  const offsets = lineOffsets(text);
  const places = edits
    .map(({ range, newText }) => ({
      start: offsetOf(path, text, offsets, range.start),
      end: offsetOf(path, text, offsets, range.end),
      newText,
    }))
    // Stable: of insertions at one place the first one comes first.
    .toSorted((one, other) => one.start - other.start);
  const parts: string[] = [];
  let done = 0;
  for (const { start, end, newText } of places) {
    if (start < done || end < start) throw unusable(path, "its edits overlap");
    parts.push(text.slice(done, start), newText);
    done = end;
  }
  return parts.join("") + text.slice(done);
}

/** Returns the offset of each line. */
function lineOffsets(text: string): number[] {
  return [0, ...[...text.matchAll(/\r\n|\n|\r/g)].map(({ index, 0: end }) => index + end.length)];
}

/** Returns the offset of a position; a column behind the end of its line is that end. */
function offsetOf(path: string, text: string, offsets: readonly number[], { line, character }: Position): number {
  // A range may end at the beginning of the line after the last one.
  if (line === offsets.length && character === 0) return text.length;
  const start = offsets[line];
  if (start === undefined || line < 0 || character < 0) throw unusable(path, `it has no line ${line + 1}`);
  const next = offsets[line + 1];
  const end = next === undefined ? text.length : start + text.slice(start, next).replace(/(\r\n|\n|\r)$/, "").length;
  return Math.min(start + character, end);
}

const unusable = (path: string, why: string) =>
  new ToolFailure(`The edit of the language server does not fit ${path}: ${why}. Nothing was changed; try again.`, {
    hadNoEffects: true,
  });
