import type { CodeAction, Command, Diagnostic, Range } from "vscode-languageserver-protocol";
import { visible } from "../../core/visible.ts";
import { type AskedFile, askAbout, type LanguageClient, supports } from "./language-client.ts";

const kinds = [
  ...["quickfix", "refactor", "refactor.extract", "refactor.inline", "refactor.rewrite"],
  ...["source", "source.organizeImports", "source.fixAll"],
] as const;

/** Kinds of code actions that can be asked for. */
export const codeActionKinds: readonly [string, ...string[]] = kinds;

/** An action that a server offers: commands alone are of the older form. */
export type OfferedAction = CodeAction | Command;

/** A range of a file, and the kind of actions that are wanted for it. */
export interface ActionQuestion {
  readonly range: Range;
  readonly kind?: string | undefined;
}

/** Lists what a server offers for a range of a file, as it is on disk now. */
export async function codeActions(
  client: LanguageClient,
  file: AskedFile,
  { range, kind }: ActionQuestion,
  signal?: AbortSignal,
): Promise<OfferedAction[]> {
  const diagnostics = (await knownDiagnostics(client, file, signal)).filter((one) => overlaps(one.range, range));
  const context = { diagnostics, ...(kind !== undefined && { only: [kind] }) };
  const method = "textDocument/codeAction";
  return (await askAbout<OfferedAction[] | null>(client, method, file, { range, context }, signal)) ?? [];
}

/** Returns the diagnostics for which there may be a fix, without waiting for them. */
async function knownDiagnostics(
  client: LanguageClient,
  file: AskedFile,
  signal?: AbortSignal,
): Promise<readonly Diagnostic[]> {
  const method = "textDocument/diagnostic";
  if (supports(client, method)) {
    const report = await askAbout<{ kind: string; items?: Diagnostic[] }>(client, method, file, {}, signal);
    return report.items ?? [];
  }
  const document = client.documents.get(file.path.absolute);
  return (document && (await client.pushed.of(document, signal))) ?? [];
}

function overlaps(one: Range, other: Range): boolean {
  const isBefore = (a: Range, b: Range) =>
    a.end.line < b.start.line || (a.end.line === b.start.line && a.end.character < b.start.character);
  return !isBefore(one, other) && !isBefore(other, one);
}

/** Names an action, so that it is found again in the present content: an action with the same title and kind is the same one. */
export interface OfferedActionName {
  readonly title: string;
  readonly kind?: string | undefined;
}

/** Makes the name of an action. */
export function nameOf(action: OfferedAction): OfferedActionName {
  const kind = kindOf(action);
  return { title: visible(action.title), ...(kind !== undefined && { kind: visible(kind) }) };
}

/** Finds an action again. */
export function findAction(
  offered: readonly OfferedAction[],
  { title, kind }: OfferedActionName,
): OfferedAction | undefined {
  return offered.find(
    (one) => visible(one.title) === title && (kind === undefined || visible(kindOf(one) ?? "") === kind),
  );
}

/** Returns the kind of an action; undefined for a command. */
const kindOf = (action: OfferedAction) => (isCommand(action) ? undefined : action.kind);

/** Tests for an action of the older form. */
export const isCommand = (action: OfferedAction): action is Command => typeof action.command === "string";
