import { readFileSync } from "node:fs";
import { join } from "node:path";
import { type Client, createClient, type Interceptor } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { dataFolder } from "./environment.ts";
import { UsageError } from "./failure.ts";

/** Whose token a command needs. */
export type TokenRole = "caller" | "approver";

/** The options that name the server and who you are. */
export interface ServerOptions {
  server: string;
  token?: string;
  tokenFile?: string;
  ca?: string;
  cert?: string;
  key?: string;
}

/** What an https server is trusted by, and what it knows this machine by; PEM text. */
export interface Certificates {
  ca?: string;
  cert?: string;
  key?: string;
}

/** A token, and where it was looked for, for people whom it does not serve. */
export interface FoundToken {
  value: string | undefined;
  source: string;
}

/** An open way to a server. */
export interface ServerConnection {
  url: string;
  /** Where the token was looked for. */
  tokenSource: string;
  hasToken: boolean;
  tools: Client<typeof ToolService>;
  sessions: Client<typeof SessionService>;
  permissions: Client<typeof PermissionService>;
  /** Another way to the same server, with another token. */
  as(token: FoundToken): ServerConnection;
  close(): void;
}

/** Where a server listens unless told otherwise. */
export const defaultUrl = "http://127.0.0.1:7420";

/** Connects to a server with the given token. Nothing is sent before the first rpc. */
export function connectServer(url: string, token: FoundToken, certificates: Certificates = {}): ServerConnection {
  // The pings tell a dead connection from a quiet one; without them a stream would wait on it for ever.
  const sessionManager = new Http2SessionManager(url, { pingIntervalMs: 20_000, pingTimeoutMs: 10_000 }, certificates);
  const transport = createGrpcTransport({
    baseUrl: url,
    sessionManager,
    interceptors: token.value === undefined ? [] : [bearer(token.value)],
    defaultTimeoutMs: 30_000,
  });
  return {
    url,
    tokenSource: token.source,
    hasToken: token.value !== undefined,
    tools: createClient(ToolService, transport),
    sessions: createClient(SessionService, transport),
    permissions: createClient(PermissionService, transport),
    as: (other) => connectServer(url, other, certificates),
    close: () => sessionManager.abort(),
  };
}

/** The server's address; `host:port` alone means plain HTTP. */
export function serverUrl(text: string): string {
  const url = text.includes("://") ? text : `http://${text}`;
  if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol))
    throw new UsageError(`"${text}" is not the address of a server`, `use one like ${defaultUrl}`);
  return url.replace(/\/+$/, "");
}

/** The options that make a printed command reach the same server. */
export function serverWords(url: string): string[] {
  return url === defaultUrl ? [] : ["--server", url];
}

/** The token for a role: --token-file, else --token, else the file that a local server left in its data folder. */
export function findToken(role: TokenRole, { server, token, tokenFile }: ServerOptions): FoundToken {
  if (tokenFile !== undefined) return readTokenFile(tokenFile);
  if (token) return { value: token, source: "the token given by --token or TOOLGATE_TOKEN was sent" };
  const file = join(dataFolder(), "tokens", role);
  // The local server's tokens are nobody else's business.
  if (!isLoopback(serverUrl(server))) {
    return {
      value: undefined,
      source: "no token was sent: those in the data folder are only for servers on this machine",
    };
  }
  try {
    return { value: readFileSync(file, "utf8").trim(), source: `the token in ${file} was sent` };
  } catch {
    return { value: undefined, source: `no token was sent: ${file} cannot be read` };
  }
}

function readTokenFile(file: string): FoundToken {
  try {
    return { value: readFileSync(file, "utf8").trim(), source: `the token in ${file} was sent` };
  } catch (cause) {
    throw new UsageError(`the token file ${file} cannot be read`, "name a readable file with --token-file", { cause });
  }
}

/** Reads what --ca, --cert and --key name. */
export function readCertificates({ ca, cert, key }: ServerOptions): Certificates {
  if ((cert === undefined) !== (key === undefined)) {
    throw new UsageError("a client certificate is a certificate and its key", "give both --cert and --key");
  }
  return {
    ...(ca !== undefined && { ca: readCertificate("--ca", ca) }),
    ...(cert !== undefined && { cert: readCertificate("--cert", cert) }),
    ...(key !== undefined && { key: readCertificate("--key", key) }),
  };
}

function readCertificate(option: string, file: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch (cause) {
    throw new UsageError(`${file} cannot be read`, `name a readable PEM file with ${option}`, { cause });
  }
}

function isLoopback(url: string): boolean {
  return /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(new URL(url).hostname);
}

function bearer(token: string): Interceptor {
  return (next) => (request) => {
    request.header.set("authorization", `Bearer ${token}`);
    return next(request);
  };
}
