/**
 * Asks Toolgate about each request that Envoy's filter ext_authz sends, over BeginCall. See docs/clients/envoy.md.
 *
 *   TOOLGATE_TOKEN=… node examples/envoy/ext-authz.ts [127.0.0.1:9191]
 */
import { isDeepStrictEqual } from "node:util";
import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { Server, ServerCredentials, type ServerUnaryCall, type ServiceDefinition, status } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";

/** The fields of Envoy's CheckRequest that are used here. */
interface CheckRequest {
  readonly attributes: {
    readonly source: { readonly principal: string } | null;
    readonly request: { readonly http: HttpRequest | null } | null;
  } | null;
}

type HttpRequest = Readonly<Record<"id" | "method" | "path" | "host" | "body", string>> & { readonly rawBody: Buffer };

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

/** Returns why Envoy must not forward a request; undefined if it may. */
async function denialOf(
  call: ServerUnaryCall<CheckRequest, unknown>,
  signal: AbortSignal,
): Promise<string | undefined> {
  const { source, request } = call.request.attributes ?? {};
  const http = request?.http;
  if (!http) return "this is no HTTP request";
  const text = http.body || http.rawBody.toString("base64");
  const input = { url: `${http.host}${http.path}`, ...(text !== "" && { with: text }) };
  // It ends before Envoy does, so that no approval is given out that Envoy no longer waits for.
  const remainingMs = Number(call.getDeadline()) - Date.now() - 10_000;
  const { outcome } = await tools.beginCall(
    {
      ...{ kind: "envoy", foreignSession: source?.principal || "envoy", foreignTool: http.method },
      ...{ foreignCallId: http.id, input, cwd: process.cwd() },
      waitMs: Math.max(0, Math.min(600_000, remainingMs)),
    },
    { signal },
  );
  if (outcome.case === "waiting") {
    const links = outcome.value.permissions.map(({ id }) => new URL(`/r/${id}`, TOOLGATE_URL).href);
    return `not answered yet, ask again with the same x-request-id: ${links.join(" ")}`;
  }
  if (outcome.case !== "begun") return outcome.value?.message ?? "refused";
  // Envoy forwards the request as it is.
  return isDeepStrictEqual(outcome.value.input, input) ? undefined : "the approver changed the request";
}

function check(call: ServerUnaryCall<CheckRequest, unknown>, answer: (error: null, response: object) => void): void {
  const gone = new AbortController();
  call.on("cancelled", () => gone.abort());
  void denialOf(call, gone.signal)
    .catch((error: unknown) => `Toolgate cannot be asked: ${error instanceof Error ? error.message : error}`)
    .then((denial) => {
      if (denial === undefined) return answer(null, { status: { code: status.OK }, okResponse: {} });
      const deniedResponse = { status: { code: 403 }, body: `${denial}\n` };
      answer(null, { status: { code: status.PERMISSION_DENIED, message: denial }, deniedResponse });
    });
}

const loaded = loadSync(`${import.meta.dirname}/external_auth.proto`, { defaults: true });
const server = new Server();
server.addService(loaded["envoy.service.auth.v3.Authorization"] as ServiceDefinition, { check });
const [address = "127.0.0.1:9191"] = process.argv.slice(2);
server.bindAsync(address, ServerCredentials.createInsecure(), (error, port) => {
  if (error !== null) throw error;
  console.log(`Envoy can ask at ${address.replace(/\d+$/, `${port}`)}`);
});
