import { readFileSync } from "node:fs";
import { HookInputError } from "../../agents/hooks/claude-hook.ts";
import { AlreadyBegunError, NotADecision } from "../../agents/hooks/delegate.ts";
import { connectVerified, type ToolgateClient } from "../../client/connect.ts";
import { PeerError, type PeerProof } from "../../client/verified-socket.ts";
import { readCertificates, type ServerOptions, serverUrl } from "../connection/connection.ts";
import { commandFailure, UsageError } from "../failure/failure.ts";

/** Options that name the service, its proof and our MCP server. */
export interface ConnectorConnectionOptions extends ServerOptions, PeerProof {
  /** The random name under which the agent knows our MCP server. */
  mcp?: string;
}

/** The way in which a connector reaches its service. */
export interface ConnectorConnection {
  url: string;
  token: string;
  /** Verifies the service, then connects. */
  connect(): Promise<ToolgateClient>;
}

/**
 * Reads how to reach and verify the service from the options alone. The settings of a project may set variables of the environment
 * of a hook, so none of them may name the service, its proof or a token.
 */
export function connectorConnection(kind: string, options: ConnectorConnectionOptions): ConnectorConnection {
  const { tokenFile, uid, certificate } = options;
  const url = serverUrl(options, {});
  if (tokenFile === undefined)
    throw new UsageError(
      `no token for ${kind} is named`,
      `run \`toolgate connect ${kind}\`, or name it with --token-file FILE`,
    );
  const token = readFileSync(tokenFile, "utf8").trim();
  const certificates = readCertificates(options, {});
  return { url, token, connect: () => connectVerified({ url, token, ...certificates }, { uid, certificate }) };
}

/** Describes a failure for the agent: why nothing was run, and the next step. */
export function connectorFailure(error: unknown, url: string): string {
  if (explained.some((type) => error instanceof type)) return `Toolgate: ${(error as Error).message}. Nothing was run.`;
  const token = { tokenSource: "the token of the connector was sent", tokenAdvice: "run `toolgate connect` again" };
  const { message, next } = commandFailure(error, { url, ...token });
  return `Toolgate: ${message}. Nothing was run. Next: ${next}`;
}

/** The service did not answer in time. */
export class SilentServiceError extends Error {
  override name = "SilentServiceError";
}

/** Errors whose message names the next step. */
const explained = [HookInputError, PeerError, NotADecision, AlreadyBegunError, SilentServiceError];
