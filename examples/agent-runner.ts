import { randomUUID } from "node:crypto";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { AgentService, type RunAgentsRequestSchema, type RunStart } from "../gen/opencode/tool/v1/agent_service_pb.ts";
import { ToolService } from "../gen/opencode/tool/v1/tool_service_pb.ts";

const { TOOLGATE_URL = "http://127.0.0.1:7420", TOOLGATE_TOKEN, AGENTS = "explore" } = process.env;
const transport = createGrpcTransport({
  baseUrl: TOOLGATE_URL,
  interceptors: [
    (next) => (request) => {
      request.header.set("authorization", `Bearer ${TOOLGATE_TOKEN}`);
      return next(request);
    },
  ],
});
const [agents, tools] = [createClient(AgentService, transport), createClient(ToolService, transport)];

/** Works on a task. A real runner gives the prompt to a model, and makes the calls that the model wants. */
async function work({ childSession, run, prompt }: RunStart, signal: AbortSignal): Promise<string> {
  const call = { sessionId: childSession, callId: `${run}-1`, tool: "glob", input: { pattern: "*" } };
  // The response is not the end if the call waits for an approver: the same request attaches to it.
  for (;;) {
    const { part } = await tools.callTool({ ...call, waitMs: 60_000 }, { signal });
    if (part?.state.case === "completed") return `You asked: ${prompt}\nThe workspace has:\n${part.state.value.output}`;
    if (part?.state.case === "error") throw new Error(part.state.value.error);
  }
}

type Message = NonNullable<MessageInitShape<typeof RunAgentsRequestSchema>["message"]>;
/** Runs that the service has not confirmed the end of, and what stops them. */
const runs = new Map<string, AbortController>();
/** Ends that the service has not confirmed. */
const ends = new Map<string, Message>();

/** Creates the messages of one stream. */
function createOutbox() {
  const waiting: Message[] = [];
  let wake = () => {};
  return {
    send(message: Message) {
      waiting.push(message);
      wake();
    },
    async *messages() {
      for (;;) {
        for (let message = waiting.shift(); message; message = waiting.shift()) yield { message };
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
      }
    },
  };
}
let outbox = createOutbox();

async function start(task: RunStart): Promise<void> {
  const { run } = task;
  const stop = new AbortController();
  runs.set(run, stop);
  const end = await work(task, stop.signal).then(
    (text): Message => ({ case: "done", value: { run, text } }),
    (error): Message => ({ case: "failed", value: { run, message: String(error) } }),
  );
  ends.set(run, end);
  outbox.send(end);
}

const instanceId = randomUUID();
for (;;) {
  outbox = createOutbox();
  const { send, messages } = outbox;
  const hello = { protocol: 1, instanceId, agents: AGENTS.split(","), capacity: 4, held: [...runs.keys()] };
  send({ case: "hello", value: hello });
  for (const end of ends.values()) send(end);
  let beats: NodeJS.Timeout | undefined;
  try {
    for await (const { message } of agents.runAgents(messages())) {
      if (message.case === "welcome") {
        beats = setInterval(() => send({ case: "beat", value: {} }), message.value.beatMs / 2);
        console.log(`connected as ${instanceId}`);
      }
      if (message.case === "start") void start(message.value);
      if (message.case === "cancel") {
        const stop = runs.get(message.value.run);
        if (stop) stop.abort();
        else send({ case: "failed", value: { run: message.value.run, message: "unknown here" } });
      }
      if (message.case === "ended") {
        runs.delete(message.value.run);
        ends.delete(message.value.run);
      }
    }
  } catch (error) {
    console.error(`disconnected: ${error}`);
  }
  clearInterval(beats);
  await new Promise((resolve) => setTimeout(resolve, 1_000));
}
