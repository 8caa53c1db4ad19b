import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "../../../gen/google/rpc/error_details_pb.ts";
import { exitCodes } from "../exit-codes.ts";
import { terminalSafe } from "../terminal/terminal-safe.ts";
import { tlsFailure } from "./tls-failure.ts";

/** A command that cannot go on, with the one thing to do next. */
export class CommandError extends Error {
  override name = "CommandError";
  readonly exitCode: number;
  readonly next: string;
  constructor(message: string, next: string, exitCode: number, options?: ErrorOptions) {
    super(message, options);
    this.exitCode = exitCode;
    this.next = next;
  }
}

/** An argument or option that cannot be used. */
export class UsageError extends CommandError {
  override name = "UsageError";
  constructor(message: string, next: string, options?: ErrorOptions) {
    super(message, next, exitCodes.usage, options);
  }
}

/** What to tell a person about an error, and what to exit with. */
export interface CommandFailure {
  message: string;
  next: string;
  exitCode: number;
}

/** The server that was talked to. */
interface Server {
  url: string;
  tokenSource: string;
}

/** Says what went wrong, why, and what to do next. */
export function commandFailure(error: unknown, server?: Server): CommandFailure {
  if (error instanceof CommandError) return error;
  if (error instanceof ConnectError && server) return rpcFailure(error, server);
  const message = error instanceof Error ? error.message : String(error);
  return { message: terminalSafe(message), next: nextAfter(error), exitCode: exitCodes.failed };
}

/** A setting or store that is refused says itself what to do; errors of the system are told by their code. */
function nextAfter(error: unknown): string {
  if (error instanceof Error && ["ConfigError", "StoreUnusable"].includes(error.name)) return "";
  const code = error instanceof Error && "code" in error ? String(error.code) : "";
  return nextByCode.get(code) ?? "that is not foreseen: the log in the data folder may say more; report it with that";
}

/** The reason (ErrorInfo) of a refused rpc, and what it names; undefined if the server gave none. */
export function errorInfoOf(error: unknown): { reason: string; metadata: Record<string, string> } | undefined {
  return error instanceof ConnectError ? error.findDetails(ErrorInfoSchema)[0] : undefined;
}

function rpcFailure(error: ConnectError, server: Server): CommandFailure {
  const told = errorInfoOf(error);
  const exitCode = byCode.get(error.code) ?? exitCodes.failed;
  if (!told) {
    const tls = tlsFailure(error, server.url);
    return tls ? { ...tls, exitCode: exitCodes.unreachable } : { ...unexplained(error, server), exitCode };
  }
  return {
    message: `${terminalSafe(error.rawMessage)} [${terminalSafe(told.reason)}]`,
    next: terminalSafe(nextSteps[told.reason]?.(told.metadata, server) ?? ""),
    exitCode,
  };
}

/** The server said nothing that we understand, or there is none. */
function unexplained(error: ConnectError, { url, tokenSource }: Server): { message: string; next: string } {
  const message = terminalSafe(error.rawMessage);
  switch (error.code) {
    case Code.Unavailable:
    case Code.Aborted:
      return {
        message: `no server at ${url} (${message})`,
        next: "start one with `toolgate serve`, or name another with --server URL",
      };
    case Code.DeadlineExceeded:
      return {
        message: `the server at ${url} did not answer in time`,
        next: "try again, or name another with --server URL",
      };
    case Code.Unauthenticated:
      return {
        message: `the server at ${url} wants a token (${message})`,
        next: `${tokenSource}; name the right one with --token-file FILE`,
      };
    case Code.Unimplemented:
      return {
        message: `the server at ${url} does not know this request (${message})`,
        next: "check that it is a Toolgate of this version",
      };
    case Code.Internal:
      return { message, next: "the server's log says more; quote the request id to who runs it" };
    default:
      return { message: `${message} [${Code[error.code]}]`, next: "try again; the server's log says more" };
  }
}

const byCode = new Map<Code, number>([
  [Code.InvalidArgument, exitCodes.usage],
  [Code.NotFound, exitCodes.usage],
  [Code.AlreadyExists, exitCodes.usage],
  [Code.OutOfRange, exitCodes.usage],
  [Code.Canceled, exitCodes.cancelled],
  [Code.DataLoss, exitCodes.lost],
  [Code.Unavailable, exitCodes.unreachable],
  [Code.Aborted, exitCodes.unreachable],
  [Code.DeadlineExceeded, exitCodes.unreachable],
  [Code.Unauthenticated, exitCodes.unreachable],
  [Code.PermissionDenied, exitCodes.unreachable],
]);

const nextByCode = new Map([
  [
    "EADDRINUSE",
    "something listens there already: end it, or name another place with --listen HOST:PORT (:0 takes any)",
  ],
  ["EADDRNOTAVAIL", "this machine has no such address: name another one with --listen HOST:PORT"],
  ["EACCES", "see who may read and write it, or name another place"],
  ["EPERM", "see who may read and write it, or name another place"],
  ["ENOENT", "check how it is spelled, or make it"],
  ["ENOTDIR", "check how it is spelled: what stands in its place is not a folder"],
  ["EEXIST", "name another place: what stands there is not a folder"],
  ["EISDIR", "name a file; this is a folder"],
  ["ENOSPC", "make room on the disk, then try again"],
  ["EMFILE", "raise the limit of open files (ulimit -n), then try again"],
]);

type NextStep = (metadata: Record<string, string>, server: Server) => string;

const nextSteps: Record<string, NextStep | undefined> = {
  INVALID_MESSAGE: ({ field = "" }) =>
    `correct ${field === "" ? "what was given" : `\`${field}\``}; --help says what each option takes`,
  INVALID_INPUT: ({ tool = "TOOL" }) => `see what it takes with \`toolgate tools ${tool}\``,
  UNKNOWN_TOOL: () => "list the tools with `toolgate tools`",
  UNKNOWN_AGENT: () => "name one that the server's configuration has, with --agent",
  UNKNOWN_WORKSPACE: () => "name one that the server's configuration has, with --workspace",
  NO_SUCH_SESSION: () =>
    "check how it is spelled, and the token: others' sessions are not shown; `call` without --session starts a new one",
  NO_SUCH_CALL: () => "see what the session did with `toolgate watch SESSION`",
  NO_SUCH_PERMISSION: () => "see what is open with `toolgate asks`",
  NO_SUCH_GRANT: () => "see what was granted with `toolgate grants --all`",
  NO_SUCH_OUTPUT: () => "outputs are kept 7 days; run the tool again",
  INVALID_RANGE: () => "ask for what lies before the end of the output",
  CALL_ID_REUSED: () => "leave --call-id out to make a new call, or repeat the same tool and input to attach to it",
  SESSION_DIFFERS: () => "use another session id, or the parent and workspace that it has",
  SESSION_CLOSED: () => "leave --session out to start a new one",
  CALL_EXPIRED: () => "leave --call-id out to run it again as a new call",
  ALREADY_ANSWERED: () => "nothing is left to do; see what is still open with `toolgate asks`",
  ASK_CLOSED: () => "see what is still open with `toolgate asks`",
  ASK_CHANGED: () => "look at it again with `toolgate asks`, then answer",
  REPLY_ID_REUSED: () => "see what is still open with `toolgate asks`, then answer anew",
  NOT_EDITABLE: () => "the call runs already: answer `once` or `reject`, or end it where it was started",
  NO_OFFER: () => "it is still open: answer `once`, or choose an offer that `toolgate asks` shows",
  UNAUTHENTICATED: (_, { tokenSource }) => `${tokenSource}; name the right one with --token-file FILE`,
  ROLE_MISSING: ({ roles = "" }, { tokenSource }) =>
    `it needs the role ${roles.replaceAll(",", " or ")}, but ${tokenSource}; name another with --token-file FILE`,
  OWN_CALL: () => "who made the call never answers its ask: answer with an approver's token (--token-file FILE)",
  QUOTA_EXCEEDED: () => "wait for open calls or asks to end, then try again",
  HISTORY_TRIMMED: ({ first_seq }) => `go on with what is left: --after ${Math.max(0, Number(first_seq ?? 1) - 1)}`,
  STORE_CHANGED: () => "what became of the call is not known: check what it did before you run it again as a new call",
  STORE_UNAVAILABLE: () => "try again with the same ids: nothing is run twice",
  DRAINING: () => "try again with the same ids: nothing is run twice",
  HOOK_FAILED: ({ plugin = "of the server" }) =>
    `correct the plugin ${plugin}, or take it out of the server's configuration`,
  HOST_REFUSED: () => "use an address that the server's configuration lists",
};
