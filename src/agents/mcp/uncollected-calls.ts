import { hash } from "node:crypto";
import type { JsonObject } from "@bufbuild/protobuf";
import { forEachPrincipal } from "../../core/bounded-map.ts";
import { canonicalJson, jsonLength } from "../../core/json.ts";

/** A call, and the request that made it. */
export interface McpCall {
  readonly sessionId: string;
  readonly callId: string;
  readonly tool: string;
  readonly input: JsonObject;
}

/**
 * Calls whose responses said that they had no result yet. The next identical call continues the oldest of them, once: a model
 * that repeats its call gets the result of the first one, and one that makes the same call twice gets two.
 */
export type UncollectedCalls = ReturnType<typeof createCollection>;

/** Time for which the result of an uncollected call can be collected by an identical call. */
export const uncollectedMs = 30 * 60_000;
/** Longest life of a call: older entries are of no use. */
const maxAgeMs = 24 * 3_600_000 + uncollectedMs;
/** Calls of one principal that are kept, and the length of what they were made with; the oldest leaves for a new one. */
const maxCount = 1_000;
const maxLength = 32 * 1024 * 1024;

/** Creates the collections, one for each principal. They are in memory: a restart forgets them, and an identical call is then a new one. */
export function createUncollectedCalls(now: () => number = Date.now): (principalId: string) => UncollectedCalls {
  return forEachPrincipal(() => createCollection(now), now);
}

function createCollection(now: () => number) {
  /** Oldest first. */
  const calls = new Map<string, { call: McpCall; key: string; length: number; added: number }>();
  let total = 0;
  const idsByKey = new Map<string, Set<string>>();

  function remove(id: string): McpCall | undefined {
    const found = calls.get(id);
    if (found === undefined) return undefined;
    calls.delete(id);
    total -= found.length;
    const ids = idsByKey.get(found.key);
    ids?.delete(id);
    if (ids?.size === 0) idsByKey.delete(found.key);
    return found.call;
  }

  return {
    add(call: McpCall): void {
      const [id, key] = [idOf(call.sessionId, call.callId), keyOf(call)];
      const length = jsonLength(call);
      remove(id);
      for (const [oldest, { added }] of calls) {
        if (calls.size < maxCount && total + length <= maxLength && now() - added < maxAgeMs) break;
        remove(oldest);
      }
      calls.set(id, { call, key, length, added: now() });
      total += length;
      idsByKey.set(key, (idsByKey.get(key) ?? new Set()).add(id));
    },
    /** Returns the oldest uncollected call with the same session, tool and input, which then counts as collected. */
    take(request: Omit<McpCall, "callId">): McpCall | undefined {
      if (calls.size === 0) return undefined;
      const [oldest] = idsByKey.get(keyOf(request)) ?? [];
      return oldest === undefined ? undefined : remove(oldest);
    },
    /** Returns an uncollected call by its id; it then counts as collected. */
    collect: (sessionId: string, callId: string): McpCall | undefined => remove(idOf(sessionId, callId)),
  };
}

const idOf = (sessionId: string, callId: string) => `${sessionId} ${callId}`;
const keyOf = ({ sessionId, tool, input }: Omit<McpCall, "callId">) =>
  hash("sha256", `${sessionId} ${tool} ${canonicalJson(input)}`, "hex");
