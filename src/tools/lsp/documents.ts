import { fileURLToPath, pathToFileURL } from "node:url";
import type { LanguageConnection } from "./connection.ts";

/** Documents that stay open at a server. An edit of more files opens all of them for its time. */
const maxOpen = 64;

/** A document as a server knows it. */
export interface OpenDocument {
  readonly uri: string;
  readonly path: string;
  readonly version: number;
  readonly text: string;
}

/** The documents that a server has open; what is sent is always what is on disk. */
export interface Documents {
  /** Opens a document with this text, or changes it; returns the version that the server knows now. */
  sync(path: string, languageId: string, text: string): OpenDocument;
  get(path: string): OpenDocument | undefined;
  /** Lists the canonical paths of open documents, the one that was used last at the end. */
  paths(): string[];
  close(path: string): void;
  /** Closes those that were not used for longest, if there are many. */
  trim(): void;
}

/** Creates the documents of a new connection. */
export function createDocuments({ notify }: Pick<LanguageConnection, "notify">): Documents {
  const open = new Map<string, OpenDocument>();

  function close(path: string): void {
    const document = open.get(path);
    if (document === undefined) return;
    open.delete(path);
    notify("textDocument/didClose", { textDocument: { uri: document.uri } });
  }

  return {
    sync(path, languageId, text) {
      const before = open.get(path);
      // A map keeps the order of insertion.
      open.delete(path);
      const uri = before?.uri ?? uriOf(path);
      const isSame = before?.text === text;
      const document = isSame ? before : { uri, path, text, version: (before?.version ?? 0) + 1 };
      open.set(path, document);
      if (before === undefined) {
        const { version } = document;
        notify("textDocument/didOpen", { textDocument: { uri, languageId, version, text } });
      } else if (!isSame) {
        const { version } = document;
        notify("textDocument/didChange", { textDocument: { uri, version }, contentChanges: [{ text }] });
        notify("textDocument/didSave", { textDocument: { uri } });
      }
      return document;
    },
    get: (path) => open.get(path),
    paths: () => [...open.keys()],
    close,
    trim() {
      for (const path of [...open.keys()].slice(0, Math.max(open.size - maxOpen, 0))) close(path);
    },
  };
}

/** Returns the address of a file in the protocol. */
export const uriOf = (path: string) => pathToFileURL(path).href;

/** Returns the path of a file by its address; undefined for an address of something else. */
export function pathOfUri(uri: string): string | undefined {
  try {
    return fileURLToPath(uri);
  } catch {
    return undefined;
  }
}
