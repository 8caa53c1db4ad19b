import { basename, extname } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import type { ClientCapabilities, InitializeResult, ServerCapabilities } from "vscode-languageserver-protocol";
import type { LanguageServer } from "../../core/language-server.ts";
import { visible } from "../../core/visible.ts";
import { ToolFailure } from "../../tool/errors.ts";
import type { PathHandle } from "../../tool/workspace.ts";
import { type LanguageConnection, openConnection, ServerAnswer, type ServerMessages } from "./connection.ts";
import { createPushedDiagnostics, type PushedDiagnostics } from "./diagnostics.ts";
import {
  type ChangedFiles,
  createDocuments,
  type Documents,
  type OpenDocument,
  presentStats,
  uriOf,
} from "./documents.ts";
import type { ServerProgram } from "./find-server.ts";

const initializeMs = 30_000;
/** Size above which a file is not sent to a server. */
const maxFileBytes = 4 * 1024 * 1024;

/** A language server that runs and has introduced itself. */
export interface LanguageClient {
  readonly server: LanguageServer;
  readonly root: string;
  readonly pid: number;
  readonly connection: LanguageConnection;
  readonly capabilities: ServerCapabilities;
  readonly documents: Documents;
  readonly pushed: PushedDiagnostics;
  readonly reports: ServerReports;
  /** Files of the project that have changed since the server was notified. */
  readonly changes: ChangedFiles;
  /** State of the files of open documents when they were sent, by path. */
  readonly stamps: Map<string, string>;
}

/** Introduces the client to a started server. Throws `ToolFailure` if it does not answer or ends. */
export async function introduceClient(
  server: LanguageServer,
  root: string,
  program: ServerProgram,
  changes: ChangedFiles,
): Promise<LanguageClient> {
  const reports: ServerReports = { registered: new Set(), working: new Map() };
  const pushed = createPushedDiagnostics();
  const connection = await openConnection(server, program, answerServer(server, root, { reports, pushed }));
  const { name, initializationOptions, settings } = server;
  try {
    const { capabilities } = await connection.request<InitializeResult>(
      "initialize",
      {
        // Its namespace has no such process, and it must not end because of that.
        processId: null,
        clientInfo: { name: "toolgate" },
        rootUri: uriOf(root),
        workspaceFolders: [folderOf(root)],
        capabilities: clientCapabilities,
        ...(initializationOptions !== undefined && { initializationOptions }),
      },
      undefined,
      initializeMs,
    );
    const { positionEncoding = "utf-16" } = capabilities;
    if (positionEncoding !== "utf-16")
      throw new ToolFailure(`The language server ${name} counts columns in ${visible(positionEncoding)}, not UTF-16.`);
    connection.notify("initialized", {});
    if (Object.keys(settings).length > 0) connection.notify("workspace/didChangeConfiguration", { settings });
    const documents = createDocuments(connection);
    const { pid } = program;
    return {
      ...{ server, root, pid, connection, capabilities, documents, pushed, reports, changes },
      stamps: new Map(),
    };
  } catch (error) {
    connection.end("it could not be initialized");
    if (!(error instanceof ServerAnswer)) throw error;
    throw new ToolFailure(`The language server ${name} refused to start: ${visible(error.message)}`, { cause: error });
  }
}

const clientCapabilities: ClientCapabilities = {
  general: { positionEncodings: ["utf-16"] },
  workspace: {
    applyEdit: false,
    configuration: true,
    workspaceFolders: true,
    didChangeWatchedFiles: { dynamicRegistration: true, relativePatternSupport: true },
    workspaceEdit: {
      documentChanges: true,
      resourceOperations: ["create", "rename", "delete"],
      failureHandling: "abort",
    },
  },
  textDocument: {
    synchronization: { didSave: true },
    hover: { contentFormat: ["markdown", "plaintext"] },
    definition: { linkSupport: true },
    implementation: { linkSupport: true },
    references: {},
    callHierarchy: {},
    documentSymbol: { hierarchicalDocumentSymbolSupport: true },
    publishDiagnostics: { versionSupport: true },
    diagnostic: { dynamicRegistration: true },
    rename: { prepareSupport: true },
    codeAction: {
      dataSupport: true,
      disabledSupport: true,
      resolveSupport: { properties: ["edit"] },
      codeActionLiteralSupport: {
        codeActionKind: { valueSet: ["", "quickfix", "refactor", "source", "source.organizeImports", "source.fixAll"] },
      },
    },
  },
  window: { workDoneProgress: true },
};

/** Requests, by the field of a server's capabilities that announces them. */
const providers = {
  "textDocument/hover": "hoverProvider",
  "textDocument/definition": "definitionProvider",
  "textDocument/implementation": "implementationProvider",
  "textDocument/references": "referencesProvider",
  "textDocument/documentSymbol": "documentSymbolProvider",
  "textDocument/diagnostic": "diagnosticProvider",
  "textDocument/rename": "renameProvider",
  "textDocument/prepareRename": "renameProvider",
  "textDocument/codeAction": "codeActionProvider",
  "textDocument/prepareCallHierarchy": "callHierarchyProvider",
  "workspace/symbol": "workspaceSymbolProvider",
} as const satisfies Readonly<Record<string, keyof ServerCapabilities>>;

/** A request about a project or a file. */
export type CodeMethod = keyof typeof providers;

/** Reports whether a server answers a request. */
export function supports({ capabilities, reports }: LanguageClient, method: CodeMethod): boolean {
  return Boolean(capabilities[providers[method]]) || reports.registered.has(method);
}

/** Sends the content of a file as it is on disk now, and that of other open files that have changed. */
export async function syncFile(
  client: LanguageClient,
  path: PathHandle,
  resolve: (path: string) => Promise<PathHandle>,
): Promise<OpenDocument> {
  await notifyChanges(client);
  for (const other of client.documents.paths()) {
    if (other === path.absolute || stampOf(other) === client.stamps.get(other)) continue;
    await send(client, await resolve(other));
  }
  const document = await send(client, path);
  if (document !== undefined) return document;
  throw new ToolFailure(`File not found: ${path.absolute}`, { hadNoEffects: true });
}

/** Notifies a server of the files that have changed since the last time. */
async function notifyChanges({ changes, connection }: LanguageClient): Promise<void> {
  const events = await changes.take();
  if (events.length > 0) connection.notify("workspace/didChangeWatchedFiles", { changes: events });
}

/** Sends the content of a file; undefined if there is none any more. */
async function send(client: LanguageClient, path: PathHandle): Promise<OpenDocument | undefined> {
  const { documents, pushed, server, stamps } = client;
  const { absolute } = path;
  const stamp = stampOf(absolute);
  const before = documents.get(absolute);
  if (before !== undefined && stamp !== undefined && stamp === stamps.get(absolute))
    return documents.sync(absolute, "", before.text);
  using file = path.open();
  if (file === undefined || stamp === undefined) {
    documents.close(absolute);
    pushed.forget(absolute);
    stamps.delete(absolute);
    return undefined;
  }
  if (file.stats.size > maxFileBytes)
    throw new ToolFailure(`${absolute} is too large for a language server (over 4 MiB).`, { hadNoEffects: true });
  // A byte order mark is no part of the text.
  const text = (await file.text()).replace(/^\uFEFF/, "");
  if (before?.text !== text) pushed.forget(absolute);
  stamps.set(absolute, stamp);
  return documents.sync(absolute, server.languages[extname(absolute)] ?? "plaintext", text);
}

/** Identifies the state of a file without reading it; undefined if there is none. */
function stampOf(path: string): string | undefined {
  const stats = presentStats(path);
  return stats && [stats.ino, stats.size, stats.mtimeNs, stats.ctimeNs].join();
}

/** A file about which a server is asked, and how paths are resolved. */
export interface AskedFile {
  readonly path: PathHandle;
  resolve(path: string): Promise<PathHandle>;
}

/** Asks about a file as it is on disk now. An answer for an earlier version is not returned: the server is asked again. */
export async function askAbout<Result>(
  client: LanguageClient,
  method: CodeMethod,
  { path, resolve }: AskedFile,
  params: object,
  signal?: AbortSignal,
): Promise<Result> {
  for (let round = 0; round < maxRounds; round += 1) {
    const document = await syncFile(client, path, resolve);
    const result = await request<Result>(client, method, { textDocument: { uri: document.uri }, ...params }, signal);
    if (result !== retry && client.documents.get(path.absolute) === document) return result;
    await delay(pauseMs * (round + 1), undefined, { ...(signal && { signal }) });
  }
  throw notReady(client);
}

/** Asks about the whole project. */
export async function askProject<Result>(
  client: LanguageClient,
  method: CodeMethod,
  params: object,
  signal?: AbortSignal,
): Promise<Result> {
  await notifyChanges(client);
  for (let round = 0; round < maxRounds; round += 1) {
    const result = await request<Result>(client, method, params, signal);
    if (result !== retry) return result;
    await delay(pauseMs * (round + 1), undefined, { ...(signal && { signal }) });
  }
  throw notReady(client);
}

const maxRounds = 4;
const pauseMs = 150;
const retry = Symbol("retry");
/** Codes by which a server says that its answer would be outdated. */
const outdated = new Set([-32_801, -32_802]);

async function request<Result>(
  client: LanguageClient,
  method: CodeMethod,
  params: object,
  signal: AbortSignal | undefined,
): Promise<Result | typeof retry> {
  const { connection, server } = client;
  if (!supports(client, method))
    throw new ToolFailure(`The language server ${server.name} does not answer ${method}.`, { hadNoEffects: true });
  try {
    return await connection.request<Result>(method, params, signal);
  } catch (error) {
    if (!(error instanceof ServerAnswer)) throw error;
    if (outdated.has(error.code)) return retry;
    throw refusedRequest(server, method, error);
  }
}

/** Asks about something that a server returned before. */
export async function followUp<Result>(
  { connection, server }: LanguageClient,
  method: string,
  params: object,
  signal?: AbortSignal,
): Promise<Result> {
  return await connection.request<Result>(method, params, signal).catch((error: unknown) => {
    throw error instanceof ServerAnswer ? refusedRequest(server, method, error) : error;
  });
}

/** Makes the failure of a request that a server answered with an error. */
function refusedRequest({ name }: Pick<LanguageServer, "name">, method: string, error: ServerAnswer): ToolFailure {
  return new ToolFailure(`The language server ${name} refused ${method}: ${visible(error.message)}`, {
    ...{ cause: error, hadNoEffects: true },
  });
}

/** Makes the failure of a question to which a server has no answer for the present content yet. */
export function notReady({ server, reports }: LanguageClient): ToolFailure {
  const working = [...reports.working.values()][0];
  const what = working === undefined ? "" : ` (${visible(working)})`;
  return new ToolFailure(
    `The language server ${server.name} is not ready yet${what}: it has no answer for the present content. Try again in a few seconds.`,
    { hadNoEffects: true },
  );
}

/** Messages of a server about itself since it started. */
interface ServerReports {
  /** Methods that it has registered. */
  readonly registered: Set<string>;
  /** Work that it is doing, by token, such as reading the project. */
  readonly working: Map<string | number, string>;
}

/** Answers what a server sends by itself. It may change no file and run nothing. */
function answerServer(
  { settings }: Pick<LanguageServer, "settings">,
  root: string,
  { reports, pushed }: { reports: ServerReports; pushed: PushedDiagnostics },
): ServerMessages {
  return {
    onRequest(method, params) {
      switch (method) {
        case "workspace/configuration":
          return itemsOf(params).map(({ section }) => sectionOf(settings, section));
        case "workspace/workspaceFolders":
          return [folderOf(root)];
        case "workspace/applyEdit":
          return { applied: false, failureReason: "the client applies only edits that it asked for" };
        case "client/registerCapability":
          for (const one of registrationsOf(params)) if (Object.hasOwn(providers, one)) reports.registered.add(one);
          return null;
        case "window/showDocument":
          return { success: false };
        default:
          // Progress, questions to a person, and requests to ask again: nothing to do.
          return null;
      }
    },
    onNotification(method, params) {
      if (!isRecord(params)) return;
      if (method === "textDocument/publishDiagnostics" && typeof params.uri === "string")
        pushed.receive(params as Parameters<PushedDiagnostics["receive"]>[0]);
      if (method === "$/progress") recordProgress(reports, params);
    },
  };
}

/** Returns a directory as the protocol names it. */
const folderOf = (root: string) => ({ uri: uriOf(root), name: basename(root) });

const maxWorking = 100;
const maxTitle = 200;

function recordProgress({ working }: ServerReports, { token, value }: Record<string, unknown>): void {
  if ((typeof token !== "string" && typeof token !== "number") || !isRecord(value)) return;
  if (value.kind === "end") working.delete(token);
  else if (value.kind === "begin" && working.size < maxWorking)
    working.set(token, String(value.title).slice(0, maxTitle));
}

/** Returns a part of the settings by its name with dots. */
function sectionOf(settings: JsonObject, section: unknown): JsonValue {
  if (typeof section !== "string" || section === "") return settings;
  if (settings[section] !== undefined) return settings[section];
  let at: JsonValue | undefined = settings;
  for (const name of section.split("."))
    at = typeof at === "object" && at !== null && !Array.isArray(at) ? at[name] : undefined;
  return at ?? null;
}

function itemsOf(params: unknown): { section?: unknown }[] {
  return isRecord(params) && Array.isArray(params.items) ? params.items.filter(isRecord) : [];
}

function registrationsOf(params: unknown): string[] {
  const list = isRecord(params) && Array.isArray(params.registrations) ? params.registrations : [];
  return list.flatMap((one) => (isRecord(one) && typeof one.method === "string" ? [one.method] : []));
}

const isRecord = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null;
