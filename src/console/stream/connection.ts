import { type Client, createClient, type Transport } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { CredentialService } from "../../../gen/opencode/tool/v1/credential_service_pb.ts";
import { PermissionService } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import { SourceService } from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import { type GetServerInfoResponse, ToolService } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { createStream, type Stream } from "./stream.ts";

/** An authenticated connection to the service that serves this page. */
export interface ConsoleConnection {
  readonly tools: Client<typeof ToolService>;
  readonly permissions: Client<typeof PermissionService>;
  readonly sessions: Client<typeof SessionService>;
  readonly credentials: Client<typeof CredentialService>;
  readonly sources: Client<typeof SourceService>;
  /** For the services that a page calls once it is shown. */
  readonly transport: Transport;
  /** The service's description, with the principal and roles of this connection. */
  readonly server: GetServerInfoResponse;
  /** The shared stream of live events. */
  readonly stream: Stream;
  /** Returns true if the principal has one of these roles. The service enforces them; the page only hides what it would refuse. */
  may(...roles: readonly string[]): boolean;
}

/** Proof of a sign-in: a token, or this page's half of a token whose other half is in a cookie that no script can read. */
export type SignInProof = { token: string } | { pageKey: string };

/** The header that carries the proof; none if there is no proof. */
export function proofHeader(proof: SignInProof | undefined): [name: string, value: string][] {
  if (proof === undefined) return [];
  return "token" in proof ? [["authorization", `Bearer ${proof.token}`]] : [["toolgate-page-key", proof.pageKey]];
}

/** Connects with a sign-in, or without one; rejects if the service refuses it. */
export async function connectConsole(proof: SignInProof | undefined): Promise<ConsoleConnection> {
  const transport = createConnectTransport({
    baseUrl: location.origin,
    useBinaryFormat: true,
    interceptors: [
      (next) => (request) => {
        for (const [name, value] of proofHeader(proof)) request.header.set(name, value);
        return next(request);
      },
    ],
  });
  const tools = createClient(ToolService, transport);
  const server = await tools.getServerInfo({});
  return {
    tools,
    permissions: createClient(PermissionService, transport),
    sessions: createClient(SessionService, transport),
    credentials: createClient(CredentialService, transport),
    sources: createClient(SourceService, transport),
    ...{ server, transport },
    stream: createStream(tools, server),
    may: (...roles) => roles.some((role) => server.roles.includes(role)),
  };
}
