import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { ToolService } from "../gen/opencode/tool/v1/tool_service_pb.ts";

const { TOOLGATE_URL = "http://127.0.0.1:7420", TOOLGATE_TOKEN } = process.env;
const transport = createGrpcTransport({
  baseUrl: TOOLGATE_URL,
  interceptors: [
    (next) => (request) => {
      request.header.set("authorization", `Bearer ${TOOLGATE_TOKEN}`);
      return next(request);
    },
  ],
});
const tools = createClient(ToolService, transport);
for await (const { event } of tools.executeTool({ tool: "echo", input: { text: "hello" } })) {
  if (event?.event.case === "part") console.log(`${event.seq} ${event.event.value.state.case}`);
}
