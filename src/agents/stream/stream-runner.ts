import { create } from "@bufbuild/protobuf";
import {
  RunCancelSchema,
  type RunDone,
  RunEndedSchema,
  type RunFailed,
  type RunnerHello,
  type RunProgress,
  RunStartSchema,
} from "../../../gen/opencode/tool/v1/agent_service_pb.ts";
import type { AgentRunner } from "../runner.ts";
import type { Outbox } from "./outbox.ts";
import { createStreamRun, type StreamRun } from "./stream-runs.ts";

/** Maximum size of an answer, and lengths at which the other texts of a runner are cut. */
const maxAnswerBytes = 1_048_576;
const maxMessageLength = 8_192;
const maxProgressLength = 2_000;

/** A runner that connects by RunAgents: one process, over all of its streams. */
export interface StreamRunner extends AgentRunner {
  readonly runCount: number;
  /** Takes over the runner's new stream. Runs that it does not hold fail; those that are unknown here it is asked to stop. */
  attach(outbox: Outbox, hello: RunnerHello): void;
  /** Leaves the runs without a stream. */
  detach(): void;
  /** Fails all runs. */
  lose(message: string): void;
  progress(report: RunProgress): void;
  finish(report: RunDone | RunFailed): void;
}

/** Creates a runner of a principal, without a stream. */
export function createStreamRunner(principal: string, instanceId: string): StreamRunner {
  const runs = new Map<string, StreamRun>();
  const name = `stream:${instanceId}`;
  let stream: { outbox: Outbox; agents: readonly string[]; capacity: number } | undefined;

  const askToStop = (run: string, reason: string) =>
    stream?.outbox.send({ case: "cancel", value: create(RunCancelSchema, { run, reason }) });

  function fail(id: string, message: string): void {
    runs.get(id)?.end({ type: "failed", message });
    runs.delete(id);
  }

  return {
    name,
    bypasses:
      "what the program that runs this agent does without calling a tool here was not judged by the rules of this service.",
    agents: () => stream?.agents ?? [],
    serves: (owner) => owner === principal,
    freeCapacity: () => (stream ? stream.capacity - runs.size : 0),
    get runCount() {
      return runs.size;
    },
    async *start(run) {
      if (!stream) {
        yield { type: "failed", message: `the agent runner ${name} disconnected before the run began. Call again.` };
        return;
      }
      const { id, childSession, parentCall, agent, prompt, cwd, isResumed, signal } = run;
      const entry = createStreamRun(run);
      runs.set(id, entry);
      const cancel = () => {
        entry.cancel();
        askToStop(id, signal.reason instanceof Error ? signal.reason.message : "The call of the task has ended.");
      };
      signal.addEventListener("abort", cancel, { once: true });
      const { sessionId: parentSession, callId: parentCallId } = parentCall;
      const start = { run: id, childSession, parentSession, parentCall: parentCallId, agent, prompt, cwd };
      stream.outbox.send({ case: "start", value: create(RunStartSchema, { ...start, resume: isResumed }) });
      if (signal.aborted) cancel();
      try {
        yield* entry.updates();
      } finally {
        signal.removeEventListener("abort", cancel);
      }
    },
    attach(outbox, { agents, capacity, held }) {
      stream = { outbox, agents, capacity };
      const known = new Set(held);
      for (const [id, run] of runs) {
        if (known.has(id)) {
          if (run.isCancelled) askToStop(id, "The call of the task has ended.");
        } else
          fail(id, `the agent runner ${name} connected again without this run. Look at what it did, then continue it.`);
      }
      for (const id of known) if (!runs.has(id)) askToStop(id, "This replica of the service does not know the run.");
    },
    detach() {
      stream = undefined;
    },
    lose(message) {
      for (const id of [...runs.keys()]) fail(id, message);
    },
    progress({ run, text, title }) {
      runs.get(run)?.progress({ text: text.slice(-maxProgressLength), title: title.slice(0, maxProgressLength) });
    },
    finish(report) {
      const { run } = report;
      runs.get(run)?.end(endOf(report));
      runs.delete(run);
      stream?.outbox.send({ case: "ended", value: create(RunEndedSchema, { run }) });
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
