import { create } from "@bufbuild/protobuf";
import {
  BeatSchema,
  type RunAgentsRequest,
  type RunnerHello,
  RunnerWelcomeSchema,
} from "../../../../gen/opencode/tool/v1/agent_service_pb.ts";
import { ErrorReason } from "../../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { serveBeatingStream } from "../../../core/outbox.ts";
import type { Principal } from "../../../core/principal.ts";
import { RequestError } from "../../../core/request-error.ts";
import type { RunnerRegistry } from "../runner-registry.ts";
import {
  createStreamRunner,
  type RunnerMessage,
  type RunnerOutbox,
  type StreamRunner,
  type TaskCalls,
} from "./stream-runner.ts";

/** Times of the runner's protocol. */
export interface StreamTimes {
  /** Time within which each side sends its next message; three of them without one end the stream. */
  beatMs: number;
  /** Time for which the runs of a runner without a stream go on. */
  resumeMs: number;
}

/** Number of runners that a principal may have at a replica. */
const maxRunners = 32;
/** Messages that may wait for a runner until its own are no longer read. */
const maxWaiting = 2_048;

/** Dependencies of the streams. */
export interface AgentStreamsParts {
  runners: RunnerRegistry;
  storeId(): string;
  /** Throws UNKNOWN_AGENT unless the principal may act as the agent. */
  checkAgent(principal: Principal, agent: string): void;
  calls: TaskCalls;
  times: StreamTimes;
}

/** Streams of RunAgents at one replica. */
export type AgentStreams = ReturnType<typeof createAgentStreams>;

/** A runner that is connected, or within the time in which it may return. */
interface Known {
  principal: string;
  runner: StreamRunner;
  outbox: RunnerOutbox | undefined;
  remove(): void;
  timer?: NodeJS.Timeout;
}

/** Creates the streams without a runner. */
export function createAgentStreams({ runners, storeId, checkAgent, calls, times }: AgentStreamsParts) {
  const known = new Map<string, Known>();
  let isClosed = false;

  /** Finds the runner of a process, or adds it. */
  function enter({ id: principal }: Principal, { instanceId }: RunnerHello): Known {
    const key = `${principal} ${instanceId}`;
    const found = known.get(key);
    if (found) return found;
    const count = [...known.values()].filter((other) => other.principal === principal).length;
    if (count >= maxRunners) throw tooManyRunners(principal);
    const runner = createStreamRunner(principal, instanceId, calls);
    const removeRunner = runners.add(runner);
    const entry: Known = {
      ...{ principal, runner, outbox: undefined },
      remove() {
        known.delete(key);
        removeRunner();
      },
    };
    known.set(key, entry);
    return entry;
  }

  async function attach(entry: Known, outbox: RunnerOutbox, hello: RunnerHello): Promise<void> {
    clearTimeout(entry.timer);
    const { instanceId } = hello;
    entry.outbox?.end(replaced(instanceId));
    entry.outbox = outbox;
    const { beatMs, resumeMs } = times;
    outbox.send({ case: "welcome", value: create(RunnerWelcomeSchema, { storeId: storeId(), beatMs, resumeMs }) });
    await entry.runner.attach(outbox, hello);
  }

  /** Ends the stream of a runner, which may return while it has runs. */
  function leave(entry: Known, outbox: RunnerOutbox): void {
    if (entry.outbox !== outbox) return;
    entry.outbox = undefined;
    entry.runner.detach();
    if (entry.runner.runCount === 0) {
      entry.remove();
      return;
    }
    entry.timer = setTimeout(() => {
      entry.remove();
      entry.runner.lose(
        `its agent runner (${entry.runner.name}) disconnected and did not return within ${times.resumeMs} ms. Look at what it did, then continue it.`,
      );
    }, times.resumeMs);
    entry.timer.unref();
  }

  return {
    /** Serves one stream: yields the messages to the runner until it leaves, is silent, is replaced, or the signal is aborted. */
    async *connect(
      principal: Principal,
      requests: AsyncIterable<RunAgentsRequest>,
      signal: AbortSignal,
    ): AsyncGenerator<RunnerMessage> {
      if (isClosed) throw draining();
      let entry: Known | undefined;
      yield* serveBeatingStream<RunAgentsRequest, RunnerMessage>({
        ...{ requests, signal, beatMs: times.beatMs, maxWaiting, silent },
        beat: { case: "beat", value: create(BeatSchema) },
        async greet(request, outbox) {
          const hello = helloOf(request);
          for (const agent of hello.agents) checkAgent(principal, agent);
          const entered = enter(principal, hello);
          entry = entered;
          await attach(entered, outbox, hello);
          return (next) => take(entered, next);
        },
        ended: (outbox) => entry && leave(entry, outbox),
      });
    },
    /** Accepts no more streams. */
    drain(): void {
      isClosed = true;
    },
    /** Ends all streams, accepts no more, and forgets the runners; runs for which a call still waits here fail. */
    close(): void {
      isClosed = true;
      for (const { timer, remove, runner, outbox } of known.values()) {
        clearTimeout(timer);
        remove();
        runner.lose("the service was stopped. Look at what it did, then continue it.");
        outbox?.end(draining());
      }
    },
  };
}

/** Takes a message of a runner after its hello. */
function take({ runner }: Known, { message }: RunAgentsRequest): void {
  if (message.case === "hello") throw secondHello();
  if (message.case === "progress") runner.progress(message.value);
  else if (message.case === "done" || message.case === "failed") runner.finish(message.value);
}

function helloOf({ message }: RunAgentsRequest): RunnerHello {
  if (message.case === "hello") return message.value;
  throw new RequestError(
    ErrorReason.INVALID_MESSAGE,
    `the first message of a runner must be hello, not ${message.case}; send hello, wait for welcome, then go on`,
    { field: "message" },
  );
}

const secondHello = () =>
  new RequestError(ErrorReason.INVALID_MESSAGE, "hello is only the first message of a stream; open another stream", {
    field: "hello",
  });

const silent = (ms: number) =>
  new RequestError(
    ErrorReason.RUNNER_SILENT,
    `the runner sent no message for ${ms} ms; connect again, and send beat while there is nothing else to say`,
    { ms: String(ms) },
  );

const replaced = (instanceId: string) =>
  new RequestError(
    ErrorReason.RUNNER_REPLACED,
    `the runner ${instanceId} connected again, and this older stream ends; give each process its own instance_id`,
    { instance_id: instanceId },
  );

const draining = () =>
  new RequestError(
    ErrorReason.DRAINING,
    "this replica is going away; connect to another one, or again in a moment, with the same instance_id",
  );

const tooManyRunners = (principal: string) =>
  new RequestError(
    ErrorReason.QUOTA_EXCEEDED,
    `the principal "${principal}" has ${maxRunners} agent runners at this replica, the limit; close one, or use another token`,
    { limit: "agent_runners" },
  );
