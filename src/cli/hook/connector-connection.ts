import { readFileSync } from "node:fs";
import { HookInputError } from "../../agents/hooks/claude-hook.ts";
import { AlreadyBegunError, NotADecision } from "../../agents/hooks/delegate.ts";
import { openVerifiedSocket, PeerError, type PeerProof } from "../../client/verified-socket.ts";
import { readCertificates, type ServerOptions, serverUrl } from "../connection/server-address.ts";
import { CommandError, UsageError } from "../failure/command-error.ts";
import { terminalSafe } from "../terminal/terminal-safe.ts";
import { createSender, RefusedRequest, type SendRequest } from "./send-request.ts";

/** Options that name the service, its proof and our MCP server. */
export interface ConnectorConnectionOptions extends ServerOptions, PeerProof {
  /** The random name under which the agent knows our MCP server. */
  mcp?: string;
}

/** The way in which a connector reaches its service. */
export interface ConnectorConnection {
  url: string;
  token: string;
  /** Verifies the service, then sends. */
  send: SendRequest;
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
  if (!/^[\x21-\x7e]+$/.test(token))
    throw new UsageError(`${tokenFile} does not hold a token`, `run \`toolgate connect ${kind}\` again`);
  const certificates = readCertificates(options, {});
  const open = () => openVerifiedSocket(url, { uid, certificate }, certificates, "http/1.1");
  return { url, token, send: createSender(url, token, open) };
}

/** Describes a failure for the agent: why nothing was run, and the next step. */
export function connectorFailure(error: unknown): string {
  const { message, next } = describe(error);
  return terminalSafe(`Toolgate: ${message}. Nothing was run.${next === "" ? "" : ` Next: ${next}`}`);
}

function describe(error: unknown): { message: string; next: string } {
  if (error instanceof CommandError) return error;
  const message = error instanceof Error ? error.message : String(error);
  if (explained.some((type) => error instanceof type)) return { message, next: "" };
  if (!(error instanceof RefusedRequest))
    return { message, next: "check what it names, or run `toolgate connect` again" };
  const { reason, code, metadata } = error;
  const next = reason === "ROLE_MISSING" ? `it needs the role ${metadata.roles}: ${connectAgain}` : nextByCode[code];
  return { message: reason === "" ? message : `${message} [${reason}]`, next: next ?? "see the log of the service" };
}

const connectAgain = "run `toolgate connect` again";

const nextByCode: Readonly<Record<string, string | undefined>> = {
  unauthenticated: connectAgain,
  unavailable: "try again; if it stays away, start it with `toolgate serve`",
  aborted: "try again",
  deadline_exceeded: "try again",
  resource_exhausted: "try again in a moment",
  unimplemented: "check that it is a Toolgate of this version",
};

/** The service did not answer in time. */
export class SilentServiceError extends Error {
  override name = "SilentServiceError";
}

/** Errors whose message names the next step. */
const explained = [HookInputError, PeerError, NotADecision, AlreadyBegunError, SilentServiceError];
