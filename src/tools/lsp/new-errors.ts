import type { Diagnostic, DocumentDiagnosticReport } from "vscode-languageserver-protocol";
import { visible } from "../../core/visible.ts";
import { untilAborted, within } from "../../core/within.ts";
import type { ToolContext } from "../../tool/tool.ts";
import type { PathHandle } from "../../tool/workspace.ts";
import { openQuestion } from "./code-call.ts";
import { type AskedFile, askAbout, type LanguageClient, notReady, supports, syncFile } from "./language-client.ts";
import type { LanguageServers } from "./language-servers.ts";

/** Time that a change of a file waits for its errors, before it and after it. */
const maxMs = 5_000;
const maxShown = 20;

/** Finds errors that changes of files make. */
export interface NewErrors {
  /** Reads the errors of a file before it is changed; returns the function that finds those that are new after it, as a note. */
  before(path: PathHandle, ctx: ErrorContext): Promise<() => Promise<{ note?: string }>>;
}

/** Reports nothing. */
export const noNewErrors: NewErrors = { before: async () => async () => ({}) };

type ErrorContext = Pick<ToolContext, "workspace" | "judge" | "signal">;

/** Creates the reports of new errors. A file whose server cannot be asked, or does not answer in time, has no report. */
export function createNewErrors(servers: LanguageServers): NewErrors {
  return {
    async before(path, ctx) {
      if (path.external || servers.placeOf(path.absolute, ctx.workspace) === undefined) return async () => ({});
      const known = await errorsIn(servers, path, ctx);
      return async () => {
        const present = await errorsIn(servers, path, ctx);
        // A file that could not be asked about before it existed had no errors.
        const before = new Set((known ?? []).map(textOf));
        const fresh = (present ?? []).filter((error) => !before.has(textOf(error)));
        return fresh.length === 0 ? {} : { note: noteOf(path, fresh) };
      };
    },
  };
}

/** Returns the errors of a file; undefined if its server cannot be asked, or not in time. */
async function errorsIn(
  servers: LanguageServers,
  path: PathHandle,
  { workspace, judge, signal }: ErrorContext,
): Promise<readonly Diagnostic[] | undefined> {
  if (judge({ permission: "lsp", patterns: [path.pattern], paths: [path.absolute] }).action !== "allow")
    return undefined;
  const waited = new AbortController();
  const late = AbortSignal.any([signal, waited.signal]);
  const asked = openQuestion(servers, { workspace, judge, signal: late }, { path, asksToStart: false })
    .then(({ client, file }) => fileDiagnostics(client, file, late))
    .catch(() => undefined);
  const found = await within(maxMs, untilAborted(asked, signal), () => undefined).catch(() => undefined);
  waited.abort();
  return found?.filter(({ severity = 1 }) => severity === 1);
}

/** Identifies an error without its place, which moves with the lines around it. */
const textOf = ({ code, message }: Diagnostic) => JSON.stringify([code, message]);

function noteOf({ pattern }: PathHandle, errors: readonly Diagnostic[]): string {
  const lines = errors.slice(0, maxShown).map(diagnosticLine);
  const more = errors.length > maxShown ? [`(${errors.length - maxShown} more)`] : [];
  return [`New errors in ${pattern}, please fix:`, ...lines, ...more].join("\n");
}

/** Severities of diagnostics, by the number of the protocol less one. */
export const severities = ["error", "warning", "information", "hint"] as const;

/** Returns the diagnostics of a file as it is on disk now: asks for them, or waits until the server pushes them. */
export async function fileDiagnostics(
  client: LanguageClient,
  file: AskedFile,
  signal: AbortSignal,
): Promise<readonly Diagnostic[]> {
  const method = "textDocument/diagnostic";
  if (supports(client, method)) {
    const report = await askAbout<DocumentDiagnosticReport>(client, method, file, {}, signal);
    return report.kind === "full" ? report.items : [];
  }
  const document = await syncFile(client, file.path, file.resolve);
  const pushed = await client.pushed.of(document, signal);
  signal.throwIfAborted();
  if (pushed !== undefined && client.documents.get(file.path.absolute) === document) return pushed;
  throw notReady(client);
}

/** Formats a diagnostic on one line. */
export function diagnosticLine({ severity = 1, source, code, range: { start }, message }: Diagnostic): string {
  const from = source === undefined ? "" : `[${source}]`;
  const number = code === undefined ? "" : ` (${code})`;
  const what = `${severities[severity - 1] ?? "error"}${from}${number}`;
  const text = typeof message === "string" ? message : message.value;
  return visible(`${what} at ${start.line + 1}:${start.character + 1}: ${text.replaceAll(/\s*\n\s*/g, " ")}`);
}
