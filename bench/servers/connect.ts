/** connect-node with nothing behind it: our messages, answered at once. No policy, no record, no token. */
import { createServer } from "node:http2";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { ToolPartSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import {
  CallToolResponseSchema,
  ExecuteToolResponseSchema,
  ToolService,
} from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { announce } from "./announce.ts";
import { completed, part } from "./echo-part.ts";

const rpcs = connectNodeAdapter({
  routes: (router) =>
    router.service(ToolService, {
      callTool: (request) =>
        create(CallToolResponseSchema, { part: part(request, completed(request)), lastSeq: 3n, storeId: "store" }),
      async *executeTool(request) {
        const input = request.input ?? {};
        yield response(1n, part(request, { case: "pending", value: { status: "pending", input } }));
        yield response(2n, part(request, { case: "running", value: { status: "running", input, title: "echo" } }));
        yield response(3n, part(request, completed(request)));
      },
    }),
});
announce(createServer(rpcs));

function response(seq: bigint, part: MessageInitShape<typeof ToolPartSchema>) {
  const { sessionId = "" } = part;
  return create(ExecuteToolResponseSchema, {
    event: { seq, time: Date.now(), sessionId, event: { case: "part", value: create(ToolPartSchema, part) } },
    lastSeq: seq,
  });
}
