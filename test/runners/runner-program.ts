import { randomBytes } from "node:crypto";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import type { Client } from "@connectrpc/connect";
import {
  AgentService,
  type RunAgentsRequest,
  RunAgentsRequestSchema,
  type RunAgentsResponse,
  type RunStart,
} from "../../gen/opencode/tool/v1/agent_service_pb.ts";
import { clientOf } from "../e2e/clients.ts";
import type { Service } from "../e2e/service.ts";

type RunnerSends = NonNullable<MessageInitShape<typeof RunAgentsRequestSchema>["message"]>;
type ServiceSends = RunAgentsResponse["message"];
type Received<C extends ServiceSends["case"]> = Extract<ServiceSends, { case: C }>["value"];

/** Connected runner whose every message a test chooses. */
export interface RunnerProgram {
  readonly instanceId: string;
  send(message: RunnerSends): void;
  /** Resolves with the next message of a kind that was not taken before; beats of the service are ignored. */
  next<C extends Exclude<ServiceSends["case"], undefined>>(name: C): Promise<Received<C>>;
  /** Resolves with the error that ends the stream; undefined if it ends without one. */
  readonly ended: Promise<unknown>;
  /** Breaks the stream off, as a process does that is killed. */
  kill(): void;
  /** Resolves with the next start, and answers it by `work`. */
  serve(work: (start: RunStart) => Promise<string> | string): Promise<RunStart>;
}

/** Options of a runner. */
export interface RunnerOptions {
  token?: string;
  agents?: string[];
  capacity?: number;
  instanceId?: string;
  held?: string[];
  /** Sends nothing by itself: neither hello nor beats. */
  isMute?: boolean;
  client?: Client<typeof AgentService>;
}

/** Connects a runner over gRPC, and waits until it is welcome. */
export async function connectRunner(
  service: Pick<Service, "url">,
  options: RunnerOptions = {},
): Promise<RunnerProgram> {
  const runner = openRunner(service, options);
  const failed = runner.ended.then((error) => {
    throw error;
  });
  await Promise.race([runner.next("welcome"), failed]);
  return runner;
}

/** Opens the stream of a runner. */
export function openRunner(
  { url }: Pick<Service, "url">,
  {
    token = "caller-token-for-tests",
    agents = ["explore"],
    capacity = 4,
    instanceId = randomBytes(8).toString("hex"),
    held = [],
    isMute = false,
    client = clientOf(AgentService, url, token),
  }: RunnerOptions = {},
): RunnerProgram {
  const leave = new AbortController();
  const sent: RunAgentsRequest[] = [];
  const received: ServiceSends[] = [];
  let wakeSender = () => {};
  let wakeReaders = () => {};

  const send: RunnerProgram["send"] = (message) => {
    sent.push(create(RunAgentsRequestSchema, { message }));
    wakeSender();
  };

  async function* requests() {
    for (;;) {
      for (let next = sent.shift(); next; next = sent.shift()) yield next;
      await new Promise<void>((resolve) => {
        wakeSender = resolve;
      });
    }
  }

  if (!isMute) send({ case: "hello", value: { protocol: 1, instanceId, agents, capacity, held } });
  const beats = isMute ? undefined : setInterval(() => send({ case: "beat", value: {} }), 500);
  beats?.unref();

  async function read(): Promise<unknown> {
    try {
      for await (const { message } of client.runAgents(requests(), { signal: leave.signal })) {
        if (message.case === "beat") continue;
        received.push(message);
        wakeReaders();
      }
      return undefined;
    } catch (error) {
      return error;
    } finally {
      clearInterval(beats);
    }
  }
  const ended = read();

  async function next<C extends ServiceSends["case"]>(name: C): Promise<Received<C>> {
    for (;;) {
      const at = received.findIndex((message) => message.case === name);
      if (at !== -1) return received.splice(at, 1)[0]?.value as Received<C>;
      await new Promise<void>((resolve) => {
        const before = wakeReaders;
        wakeReaders = () => {
          before();
          resolve();
        };
      });
    }
  }

  return {
    instanceId,
    send,
    next,
    ended,
    kill: () => leave.abort(),
    async serve(work) {
      const start = await next("start");
      send({ case: "done", value: { run: start.run, text: await work(start) } });
      return start;
    },
  };
}
