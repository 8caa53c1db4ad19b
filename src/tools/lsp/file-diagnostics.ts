import type { Diagnostic, DocumentDiagnosticReport } from "vscode-languageserver-protocol";
import { visible } from "../../core/visible.ts";
import { type AskedFile, askAbout, type LanguageClient, notReady, supports, syncFile } from "./language-client.ts";

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
