import { basename } from "node:path";
import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import type { LanguageServer } from "../../core/language-server.ts";
import type { ServerMessages } from "./connection.ts";
import type { PushedDiagnostics } from "./diagnostics.ts";
import { uriOf } from "./documents.ts";

/** Messages of a server about itself since it started. */
export interface ServerReports {
  /** Methods that it has registered. */
  readonly registered: Set<string>;
  /** Work that it is doing, by token, such as reading the project. */
  readonly working: Map<string | number, string>;
}

/** Answers what a server sends by itself. It may change no file and run nothing. */
export function answerServer(
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
          for (const one of registrationsOf(params)) reports.registered.add(one);
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
export const folderOf = (root: string) => ({ uri: uriOf(root), name: basename(root) });

const maxWorking = 100;

function recordProgress({ working }: ServerReports, { token, value }: Record<string, unknown>): void {
  if ((typeof token !== "string" && typeof token !== "number") || !isRecord(value)) return;
  if (value.kind === "end") working.delete(token);
  else if (value.kind === "begin" && working.size < maxWorking) working.set(token, String(value.title));
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
