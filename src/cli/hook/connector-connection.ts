import { readFileSync } from "node:fs";
import { connectVerified, type ToolgateClient } from "../../client/connect.ts";
import { PeerError, type PeerProof } from "../../client/verified-socket.ts";
import { HookInputError } from "../../dialect/claude-hook.ts";
import { AlreadyBegunError, NotADecision } from "../../dialect/delegate.ts";
import { readCertificates, type ServerOptions, serverUrl } from "../connection/connection.ts";
import { commandFailure, UsageError } from "../failure/failure.ts";
import { readConnectorRecord } from "./connector-record.ts";

/** Options that name the service and its proof; they replace those of the record. */
export type ConnectorConnectionOptions = ServerOptions & PeerProof;

/** How a connector reaches its service. */
export interface ConnectorConnection {
  url: string;
  /** The random name under which the agent knows our MCP server. */
  mcpName: string | undefined;
  /** Verifies the service, then connects. */
  connect(): Promise<ToolgateClient>;
}

/** Reads how to reach and verify the service: options, then the record of `toolgate connect`, then the defaults. */
export function connectorConnection(
  kind: string,
  options: ConnectorConnectionOptions,
  env: NodeJS.ProcessEnv,
): ConnectorConnection {
  const record = readConnectorRecord(kind, env);
  const url = serverUrl({ ...record, ...options }, env);
  const tokenFile = options.tokenFile ?? record.tokenFile;
  if (tokenFile === undefined)
    throw new UsageError(
      `no token for ${kind} is configured`,
      `run \`toolgate connect ${kind}\`, or name it with --token-file FILE`,
    );
  const token = readFileSync(tokenFile, "utf8").trim();
  const proof = { uid: options.uid ?? record.uid, certificate: options.certificate ?? record.certificate };
  const certificates = readCertificates({ ...record, ...options }, env);
  return { url, mcpName: record.mcpName, connect: () => connectVerified({ url, token, ...certificates }, proof) };
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
