import { hash, randomBytes } from "node:crypto";
import { workspaceRoot } from "../core/workspace-root.ts";
import { approveCall } from "./approve.ts";
import { CallGone } from "./ends.ts";
import type { Engine } from "./engine.ts";
import { newRunning } from "./launch.ts";
import type { CallRecord } from "./ports.ts";
import { resolveTool, runBeforeHooks } from "./prepare.ts";
import { releaseCall } from "./release.ts";
import { type Running, runKeyOf } from "./running.ts";
import type { OpenSession } from "./sessions.ts";
import { failCall } from "./settle.ts";

/** Secret of a delegated call that begins, and the hash of it that is stored. */
export interface Assignment {
  readonly secret: string;
  readonly hash: string;
}

/** Makes an assignment of 128 random bits. */
export function newAssignment(): Assignment {
  const secret = randomBytes(16).toString("hex");
  return { secret, hash: assignmentHash(secret) };
}

/** Returns the hash by which the store finds the call of an assignment. */
export function assignmentHash(secret: string): string {
  return hash("sha256", secret, "hex");
}

/** Request that tries to begin a call. */
export interface Beginner {
  assignment: Assignment;
  /** Aborted when the requester leaves. */
  signal: AbortSignal;
}

/**
 * Takes the steps of a delegated call that this replica holds the lease of, up to its start mark or its permission requests. The
 * lease ends with either. Never throws: a failure becomes the call's state.
 */
export function attemptDelegated(
  engine: Engine,
  record: CallRecord,
  opened: OpenSession,
  leaseConfirmed: number,
  { assignment, signal }: Beginner,
): Promise<void> {
  const call = newRunning(engine, record, opened, leaseConfirmed, { assignment: assignment.hash });
  const key = runKeyOf(record.ref);
  const leave = () => call.controller.abort(new CallGone());
  if (signal.aborted) leave();
  signal.addEventListener("abort", leave, { once: true });
  const done = attempt(engine, call).finally(() => {
    signal.removeEventListener("abort", leave);
    if (engine.runs.get(key)?.call === call) engine.runs.delete(key);
  });
  engine.runs.set(key, { call, done: done.then(() => undefined) });
  return done;
}

async function attempt(engine: Engine, call: Running): Promise<void> {
  try {
    await engine.registry.refresh(workspaceRoot(call.opened.workspace.name));
    call.tool = resolveTool(engine, call.record, call.opened);
    await runBeforeHooks(engine, call);
    await approveCall(engine, call, call.tool);
  } catch (cause) {
    await failCall(engine, call, cause);
  } finally {
    call.observed.over(call.record.part);
    if (call.record.part.state.case === "pending") await tryRelease(engine, call.record);
  }
}

/** Releases a call; if that fails, renewal finds the lease without a run and releases it. */
async function tryRelease(engine: Engine, record: CallRecord): Promise<void> {
  await releaseCall(engine, record).catch((error: unknown) => {
    const { callId } = record.ref;
    engine.log.warn("the lease of a delegated call could not be released yet", { error, callId });
  });
}
