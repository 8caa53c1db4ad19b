import { setTimeout as delay } from "node:timers/promises";
import * as z from "zod";
import type { RemoteTools } from "../../src/call/engine.ts";
import type { CallRef } from "../../src/core/call-ref.ts";
import { boundTool, defineTool } from "../../src/tool/define-tool.ts";
import { assignmentOf, callOfAssignment, type RemoteMark, type Reservation } from "../../src/tool/remote.ts";
import type { DefinedTool, ToolContext, ToolResult } from "../../src/tool/tool.ts";

/** A body that a worker has entered: it gets the context of the run that goes on with it. */
export interface WorkerBody {
  readonly assignment: string;
  ctx: ToolContext;
  end(result: ToolResult): void;
  fail(error: Error): void;
}

/** A worker process of a test, connected to at most one replica. It enters each body once and keeps it over its connections. */
export type TestWorker = ReturnType<typeof createTestWorker>;

export function createTestWorker({ capacity = 10, queueMs = 60_000, idempotent = false } = {}) {
  const mark = { principal: "ci", instance: "wrk_1", resumeMs: 30_000 };
  const bodies = new Map<string, WorkerBody>();
  const orphans: CallRef[] = [];
  /** Calls whose bodies were entered, in order. */
  const entered: string[] = [];
  /** Calls that it does not take now. */
  const paused = new Set<string>();
  let [at, connection, running, count] = ["", 0, 0, 0];
  /** The worker never gets the next starts. */
  let isDeaf = false;

  function reserve(replica: string, call: Pick<CallRef, "sessionId" | "callId">): Reservation | undefined {
    if (at !== replica || running >= capacity || paused.has(call.callId)) return undefined;
    running += 1;
    let isFree = false;
    const assignment = assignmentOf(`${count++}`.padStart(22, "0"), call);
    return {
      mark: { ...mark, connection, assignment },
      free() {
        if (!isFree) running -= 1;
        isFree = true;
      },
    } as Reservation;
  }

  async function run(ctx: ToolContext, gone: AbortSignal): Promise<ToolResult> {
    const { remote } = ctx;
    if (!remote) throw new Error("the body got no worker");
    const { promise, resolve, reject } = Promise.withResolvers<ToolResult>();
    const { assignment } = remote.mark;
    const stop = AbortSignal.any([ctx.signal, gone]);
    stop.addEventListener("abort", () => reject(stop.reason), { once: true });
    if (stop.aborted) reject(stop.reason);
    const body = { assignment, ctx, end: resolve, fail: reject };
    if (!remote.isAdopted && !isDeaf) entered.push(ctx.callId);
    if (remote.isAdopted || !isDeaf) bodies.set(assignment, body);
    return await promise;
  }

  return {
    entered,
    paused,
    orphans,
    bodies,
    /** The tool of a replica, whose bodies run in the worker. */
    toolOf: (replica: string, gone: AbortSignal): DefinedTool =>
      defineTool({
        name: "deploy",
        description: "Deploys.",
        input: z.object({ place: z.string().optional() }),
        idempotent,
        timeoutMs: 100_000,
        plan: ({ place }) => ({
          title: "deploy",
          asks: place === undefined ? [] : [{ permission: "deploy", patterns: [place] }],
        }),
        remote: {
          queueMs,
          reserve: (call) => reserve(replica, call),
          isPaused: ({ callId }) => paused.has(callId),
          unavailable: async () => "no worker of ci runs",
        },
        execute: (_input, { plan: _plan, ...ctx }) => run(ctx, gone),
      }),
    remoteToolsOf: (tools: readonly DefinedTool[]): RemoteTools => ({
      find: (id) => tools.map(boundTool).find(({ definition }) => definition.definitionId === id),
      isServed: async () => true,
      onOrphan: (ref) => void orphans.push(ref),
    }),
    /** Connects to a replica, or to none; returns the mark of a body over this connection. */
    connect(replica: string): (assignment?: string) => RemoteMark {
      at = replica;
      connection += 1;
      const now = connection;
      return (assignment = [...bodies.keys()].at(-1) ?? "") => ({ ...mark, connection: now, assignment });
    },
    setDeaf(is: boolean): void {
      isDeaf = is;
    },
    /** Waits until a call runs in the worker, in a context that `is` accepts. */
    async body(callId: string, is: (ctx: ToolContext) => boolean = () => true): Promise<WorkerBody> {
      for (;;) {
        for (const body of bodies.values())
          if (callOfAssignment(body.assignment)?.callId === callId && is(body.ctx)) return body;
        await delay(5);
      }
    },
  };
}
