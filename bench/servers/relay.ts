/**
 * grpc-js between a caller and a worker, and nothing else: each call goes to the worker of its tool as the same messages that the
 * service sends. Nothing is judged or stored.
 */
import {
  create,
  type DescMessage,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";
import {
  Server,
  ServerCredentials,
  type ServerDuplexStream,
  type ServerUnaryCall,
  type sendUnaryData,
  status,
} from "@grpc/grpc-js";
import {
  type CallToolRequest,
  type CallToolResponseSchema,
  ToolService,
} from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { ToolRegistration, type WorkRequest, type WorkResponseSchema } from "../../gen/opencode/tool/v1/worker_pb.ts";
import { WorkerService } from "../../gen/opencode/tool/v1/worker_service_pb.ts";
import { announcePort } from "./announce.ts";
import { completed, part } from "./echo-part.ts";

type Worker = ServerDuplexStream<WorkRequest, MessageInitShape<typeof WorkResponseSchema>>;
type Respond = sendUnaryData<MessageInitShape<typeof CallToolResponseSchema>>;

/** Workers by the name of their tool, and the calls that they run, by assignment. */
const workers = new Map<string, Worker>();
const running = new Map<string, { request: CallToolRequest; respond: Respond }>();

function work(stream: Worker): void {
  stream.on("error", () => undefined); // A worker that is killed must not end the server.
  stream.on("data", ({ message: { case: name, value } }: WorkRequest) => {
    if (name === "hello") {
      const tools = value.tools.map((tool) => ({ name: tool.name, registration: ToolRegistration.REGISTERED }));
      const times = { beatMs: 10_000, silenceMs: 30_000, resumeMs: value.resumeMs };
      stream.write({
        message: { case: "welcome", value: { storeId: "store", ...times, windowBytes: 262_144, tools } },
      });
      for (const tool of value.tools) workers.set(tool.name, stream);
    }
    if (name === "beat") stream.write({ message: { case: "beat", value: {} } });
    if (name !== "report" || value.report.case !== "result") return;
    const { assignment, report } = value;
    const { outcome } = report.value;
    const call = running.get(assignment);
    running.delete(assignment);
    stream.write({ message: { case: "ended", value: { assignment, recorded: true } } });
    if (call === undefined || outcome.case !== "completed") throw new Error(`${assignment} ended as ${outcome.case}`);
    const { request, respond } = call;
    const text = outcome.value.output ?? "";
    const state = completed({ ...request, input: { text } });
    respond(null, { part: part(request, state), lastSeq: 3n, storeId: "store" });
  });
}

let calls = 0;

function callTool({ request }: ServerUnaryCall<CallToolRequest, unknown>, respond: Respond): void {
  const { sessionId, messageId, callId, tool, input = {} } = request;
  const worker = workers.get(tool);
  if (worker === undefined) {
    respond({ code: status.UNAVAILABLE, details: "no worker" });
    return;
  }
  calls += 1;
  const assignment = `${String(calls).padStart(22, "0")}/${sessionId}/${callId}`;
  running.set(assignment, { request, respond });
  const call = { sessionId, messageId, callId, tool, input, agent: "build", workspace: "default" };
  worker.write({ message: { case: "start", value: { assignment, call, title: tool, attempt: 1 } } });
}

/** An rpc as grpc-js defines it. */
function rpc<I extends DescMessage, O extends DescMessage>(
  { parent, name, input, output }: { parent: { typeName: string }; name: string; input: I; output: O },
  isStream: boolean,
) {
  return {
    path: `/${parent.typeName}/${name}`,
    ...{ requestStream: isStream, responseStream: isStream },
    requestDeserialize: (bytes: Buffer) => fromBinary(input, bytes),
    requestSerialize: (message: MessageShape<I>) => Buffer.from(toBinary(input, message)),
    responseDeserialize: (bytes: Buffer) => fromBinary(output, bytes),
    responseSerialize: (message: MessageInitShape<O>) => Buffer.from(toBinary(output, create(output, message))),
  };
}

const server = new Server();
server.addService({ work: rpc(WorkerService.method.work, true) }, { work });
server.addService({ callTool: rpc(ToolService.method.callTool, false) }, { callTool });
server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (error, port) => {
  if (error) throw error;
  announcePort(port);
});
