import type { Diagnostic } from "vscode-languageserver-protocol";
import { createBoundedMap } from "../../core/bounded-map.ts";
import { jsonLength } from "../../core/json.ts";
import { type OpenDocument, pathOfUri } from "./documents.ts";

/** Time for which a push of the present version is awaited. */
const pushMs = 3_000;
/** Files whose diagnostics are retained. */
const maxFiles = 1_000;
/** Length of all of them together, as JSON. */
const maxLength = 32 * 1024 * 1024;

/** Diagnostics that a server pushed for a file. */
interface Pushed {
  /** Undefined for a server that names none. */
  readonly version: number | undefined;
  readonly items: readonly Diagnostic[];
  readonly length: number;
}

/** The diagnostics that a server pushes. */
export interface PushedDiagnostics {
  receive(params: { uri: string; version?: number | null; diagnostics?: Diagnostic[] }): void;
  /** Forgets what was pushed about a file, since it has changed or is closed. */
  forget(path: string): void;
  /** Returns what was pushed for this version; undefined if nothing is in time. */
  of(document: OpenDocument, signal?: AbortSignal, ms?: number): Promise<readonly Diagnostic[] | undefined>;
}

/** Creates an empty collection. */
export function createPushedDiagnostics(): PushedDiagnostics {
  const pushed = createBoundedMap<Pushed>({ maxCount: maxFiles, maxLength }, ({ length }) => length);
  const waiting = new Set<() => void>();
  /** A push without a version counts for the version that was sent before it. */
  const find = ({ path, version }: OpenDocument) => {
    const found = pushed.get(path);
    return found !== undefined && (found.version ?? version) === version ? found.items : undefined;
  };
  return {
    receive({ uri, version, diagnostics = [] }) {
      const path = pathOfUri(uri);
      if (path === undefined) return;
      const length = jsonLength(diagnostics);
      pushed.set(path, { version: version ?? undefined, items: diagnostics, length });
      for (const wake of [...waiting]) wake();
    },
    forget: pushed.delete,
    async of(document, signal, ms = pushMs) {
      const { promise: late, resolve: stop } = Promise.withResolvers<"late">();
      const timer = setTimeout(stop, ms, "late");
      const onAbort = () => stop("late");
      signal?.addEventListener("abort", onAbort, { once: true });
      try {
        for (;;) {
          const items = find(document);
          if (items !== undefined) return items;
          const { promise: news, resolve: wake } = Promise.withResolvers<void>();
          waiting.add(wake);
          const result = await Promise.race([news, late]).finally(() => waiting.delete(wake));
          if (result === "late") return undefined;
        }
      } finally {
        clearTimeout(timer);
        signal?.removeEventListener("abort", onAbort);
      }
    },
  };
}
