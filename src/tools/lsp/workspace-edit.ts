import type { TextEdit, WorkspaceEdit } from "vscode-languageserver-protocol";
import { visible } from "../../core/visible.ts";
import { ToolFailure } from "../../tool/errors.ts";
import type { Judge } from "../../tool/tool.ts";
import type { PathHandle, Workspace } from "../../tool/workspace.ts";
import type { FilePatch } from "../apply-patch/parse-patch.ts";
import type { PatchStep } from "../apply-patch/verify-patch.ts";
import { compare } from "../fs/diff.ts";
import { type ExistingFile, readExisting } from "../fs/existing-file.ts";
import { pathOfUri } from "./documents.ts";
import { type LanguageClient, notReady, syncFile } from "./language-client.ts";
import { mayRead } from "./places.ts";
import { applyTextEdits } from "./text-edits.ts";

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
export async function stepsOf(
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
export async function syncFilesOf(
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
