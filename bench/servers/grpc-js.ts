/** grpc-js with nothing behind it: the same messages from the same proto files, answered at once. */
import { join } from "node:path";
import { Server, ServerCredentials, type ServerUnaryCall, type sendUnaryData } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { announcePort } from "./announce.ts";

/** The fields of a request that this server reads; proto-loader gives each Struct in its wire form. */
interface Request {
  sessionId: string;
  messageId: string;
  callId: string;
  tool: string;
  input: { fields: { text: { stringValue: string } } };
}

const definitions = loadSync("opencode/tool/v1/tool_service.proto", {
  includeDirs: [join(import.meta.dirname, "../../proto")],
});
const service = definitions["opencode.tool.v1.ToolService"];
if (service === undefined || "format" in service) throw new Error("ToolService is not in the proto files");

const server = new Server();
server.addService(service, { CallTool: callTool });
server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (error, port) => {
  if (error) throw error;
  announcePort(port);
});

function callTool({ request }: ServerUnaryCall<Request, unknown>, respond: sendUnaryData<unknown>): void {
  const { sessionId, messageId, callId, tool, input } = request;
  const output = input.fields.text.stringValue;
  const metadata = {
    fields: {
      truncated: { boolValue: false },
      originalSize: { numberValue: output.length },
      truncatedSize: { numberValue: output.length },
      outputPath: { nullValue: 0 },
    },
  };
  const time = { start: Date.now(), end: Date.now() };
  const completed = { status: "completed", input, output, title: "echo", metadata, time };
  const part = { id: `prt_${callId}`, sessionId, messageId, type: "tool", callId, tool, agent: "build", completed };
  respond(null, { part: { ...part, revision: 3 }, lastSeq: 3, storeId: "store" });
}
