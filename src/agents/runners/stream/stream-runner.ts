import { create } from "@bufbuild/protobuf";
import {
  type RunAgentsResponse,
  RunCancelSchema,
  type RunDone,
  RunEndedSchema,
  type RunFailed,
  type RunnerHello,
  type RunProgress,
  RunStartSchema,
} from "../../../../gen/opencode/tool/v1/agent_service_pb.ts";
import type { Outbox } from "../../../core/outbox.ts";
import type { AgentRunner, RunUpdate, SessionCall } from "../runner.ts";

/** A message to a runner. */
export type RunnerMessage = Exclude<RunAgentsResponse["message"], { case: undefined }>;
/** Messages to a runner until it reads them. */
export type RunnerOutbox = Outbox<RunnerMessage>;

/** Maximum size of an answer, and lengths at which the other texts of a runner are cut. */
const maxAnswerBytes = 1_048_576;
const maxMessageLength = 8_192;
const maxProgressLength = 2_000;

/** Calls of tasks, as far as runners need them. */
export interface TaskCalls {
  /** Finds the open call that waits for this run, in a session that the principal owns. */
  find(run: string, principal: string): Promise<SessionCall | undefined>;
  /** Resolves when a call has ended. */
  ended(call: SessionCall): Promise<void>;
}

/** A runner that connects by RunAgents: one process, over all of its streams. */
export interface StreamRunner extends AgentRunner {
  readonly runCount: number;
  /**
   * Takes over the runner's new stream. Runs that it does not hold fail. Those that are unknown here it keeps if their calls wait for
   * them, after a restart or at a lost replica; it is asked to stop the others.
   */
  attach(outbox: RunnerOutbox, hello: RunnerHello): Promise<void>;
  /** Leaves the runs without a stream. */
  detach(): void;
  /** Fails all runs for which a call waits here, and forgets the others. */
  lose(message: string): void;
  progress(report: RunProgress): void;
  finish(report: RunDone | RunFailed): void;
}

/** Creates a runner of a principal, without a stream. */
export function createStreamRunner(principal: string, instanceId: string, calls: TaskCalls): StreamRunner {
  const runs = new Map<string, StreamRun>();
  const name = `stream:${instanceId}`;
  let stream: { outbox: RunnerOutbox; agents: readonly string[]; capacity: number } | undefined;

  const askToStop = (run: string, reason: string) =>
    stream?.outbox.send({ case: "cancel", value: create(RunCancelSchema, { run, reason }) });

  function fail(id: string, message: string): void {
    runs.get(id)?.end({ type: "failed", message });
    runs.delete(id);
  }

  /** Confirms the end of a run, which the runner may then forget. */
  function forget(run: string): void {
    runs.delete(run);
    stream?.outbox.send({ case: "ended", value: create(RunEndedSchema, { run }) });
  }

  function settled(id: string): void {
    const run = runs.get(id);
    if (run?.hasEnded) forget(id);
    else if (run && !run.isCancelled) {
      run.cancel();
      askToStop(id, "The call of the task has ended.");
    }
  }

  /** Adds a run that an earlier run of this service, or another replica, started, if a call waits for it. */
  async function adopt(id: string): Promise<void> {
    const call = await calls.find(id, principal);
    if (!call) return askToStop(id, "No call of this service waits for the run.");
    if (runs.has(id)) return;
    runs.set(id, createStreamRun());
    calls.ended(call).then(
      () => settled(id),
      () => undefined,
    );
  }

  return {
    name,
    bypasses:
      "what the program that runs this agent does without calling a tool here was not judged by the rules of this service.",
    agents: () => stream?.agents ?? [],
    serves: (owner) => owner === principal,
    freeCapacity: () => (stream ? stream.capacity - runs.size : 0),
    surviving: { holds: (id) => runs.has(id), settled },
    get runCount() {
      return runs.size;
    },
    async *start(run) {
      const { id, childSession, parentCall, agent, prompt, cwd, isResumed, signal } = run;
      const held = runs.get(id);
      if (!held && !stream) {
        yield { type: "failed", message: `the agent runner ${name} disconnected before the run began. Call again.` };
        return;
      }
      const entry = held ?? createStreamRun();
      runs.set(id, entry);
      const cancel = () => {
        entry.cancel();
        askToStop(id, signal.reason instanceof Error ? signal.reason.message : "The call of the task has ended.");
      };
      signal.addEventListener("abort", cancel, { once: true });
      const { sessionId: parentSession, callId: parentCallId } = parentCall;
      const start = { run: id, childSession, parentSession, parentCall: parentCallId, agent, prompt, cwd };
      if (!held) stream?.outbox.send({ case: "start", value: create(RunStartSchema, { ...start, resume: isResumed }) });
      if (signal.aborted) cancel();
      try {
        yield* entry.updates();
      } finally {
        signal.removeEventListener("abort", cancel);
      }
    },
    async attach(outbox, { agents, capacity, held }) {
      stream = { outbox, agents, capacity };
      const reported = new Set(held);
      for (const [id, run] of runs) {
        if (reported.has(id)) {
          if (run.isCancelled) askToStop(id, "The call of the task has ended.");
        } else
          fail(id, `the agent runner ${name} connected again without this run. Look at what it did, then continue it.`);
      }
      await Promise.all([...reported].filter((id) => !runs.has(id)).map(adopt));
    },
    detach() {
      stream = undefined;
    },
    lose(message) {
      for (const [id, run] of runs) {
        if (run.isFollowed) fail(id, message);
        else runs.delete(id);
      }
    },
    progress({ run, text, title }) {
      runs.get(run)?.progress({ text: text.slice(-maxProgressLength), title: title.slice(0, maxProgressLength) });
    },
    finish(report) {
      const { run } = report;
      const entry = runs.get(run);
      entry?.end(endOf(report));
      // The end of any other run is confirmed when it is recorded, so that a crash before that does not lose it.
      if (!entry || entry.isCancelled) forget(run);
    },
  };
}

function endOf(report: RunDone | RunFailed): Parameters<StreamRun["end"]>[0] {
  if (report.$typeName === "opencode.tool.v1.RunFailed") {
    const message = report.message.slice(0, maxMessageLength).toWellFormed();
    return { type: "failed", message: message === "" ? "the runner gave no reason." : message };
  }
  const bytes = Buffer.byteLength(report.text);
  if (bytes <= maxAnswerBytes) return { type: "done", text: report.text };
  return {
    type: "failed",
    message: `the agent's answer has ${bytes} bytes, over the limit of ${maxAnswerBytes}. Continue it and ask for a shorter one.`,
  };
}

/** Run at a connected runner, from `start`, or from the runner's `hello`, until its end is confirmed to the runner. */
type StreamRun = ReturnType<typeof createStreamRun>;

/** Creates a run. It holds at most one progress and one end, however many messages arrive. */
function createStreamRun() {
  let latest: RunUpdate | undefined;
  let end: RunUpdate | undefined;
  let isCancelled = false;
  let reader = 0;
  let wake = () => {};
  return {
    /** Replaces the progress that was not consumed yet. */
    progress({ text, title }: { text: string; title: string }): void {
      if (end || isCancelled) return;
      const before = latest?.type === "progress" ? latest : {};
      latest = { type: "progress", ...before, ...(text !== "" && { text }), ...(title !== "" && { title }) };
      wake();
    },
    /** Ends the run; the first end counts. */
    end(update: Extract<RunUpdate, { type: "done" | "failed" }>): void {
      end ??= update;
      wake();
    },
    get hasEnded() {
      return end !== undefined;
    },
    /** True once nobody here waits for the run: the runner was asked to stop it. */
    get isCancelled() {
      return isCancelled;
    },
    /** True if a call of this replica has read its updates. */
    get isFollowed() {
      return reader > 0;
    },
    /** Ends the iteration without an update. */
    cancel(): void {
      isCancelled = true;
      latest = undefined;
      wake();
    },
    /** Yields the updates, the end included, also if an earlier reader got it. An earlier iteration ends. */
    async *updates(): AsyncGenerator<RunUpdate> {
      reader += 1;
      const own = reader;
      wake();
      for (;;) {
        if (isCancelled || reader !== own) return;
        if (latest) {
          const update = latest;
          latest = undefined;
          yield update;
        } else if (end) {
          yield end;
          return;
        } else {
          await new Promise<void>((resolve) => {
            wake = resolve;
          });
        }
      }
    },
  };
}
