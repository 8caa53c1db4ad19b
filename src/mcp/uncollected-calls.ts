import type { JsonObject } from "@bufbuild/protobuf";
import { canonicalJson } from "../core/canonical-json.ts";

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
export interface UncollectedCalls {
  add(call: McpCall): void;
  /** Returns the oldest uncollected call with the same session, tool and input, which then counts as collected. */
  take(call: Omit<McpCall, "callId">): McpCall | undefined;
  /** Returns an uncollected call by its id; it then counts as collected. */
  collect(sessionId: string, callId: string): McpCall | undefined;
}

/** Time for which the result of an uncollected call can be collected by an identical call. */
export const uncollectedMs = 30 * 60_000;
/** Longest life of a call: older entries are of no use. */
const maxAgeMs = 24 * 3_600_000 + uncollectedMs;
const maxCount = 10_000;

/** Creates the collection. It is in memory: a restart forgets it, and an identical call is then a new one. */
export function createUncollectedCalls(now: () => number = Date.now): UncollectedCalls {
  const calls = new Map<string, { call: McpCall; key: string; added: number }>();
  return {
    add(call) {
      for (const [id, { added }] of calls) {
        if (calls.size < maxCount && now() - added < maxAgeMs) break;
        calls.delete(id);
      }
      calls.set(idOf(call.sessionId, call.callId), { call, key: keyOf(call), added: now() });
    },
    take(request) {
      const key = keyOf(request);
      const [id, found] = [...calls].find(([, entry]) => entry.key === key) ?? [];
      if (id !== undefined) calls.delete(id);
      return found?.call;
    },
    collect(sessionId, callId) {
      const id = idOf(sessionId, callId);
      const found = calls.get(id);
      calls.delete(id);
      return found?.call;
    },
  };
}

const idOf = (sessionId: string, callId: string) => `${sessionId} ${callId}`;
const keyOf = ({ sessionId, tool, input }: Omit<McpCall, "callId">) => `${sessionId} ${tool} ${canonicalJson(input)}`;
