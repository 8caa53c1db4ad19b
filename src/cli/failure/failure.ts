import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "../../../gen/google/rpc/error_details_pb.ts";
import { terminalSafe } from "../terminal/terminal-safe.ts";
import { CommandError, exitCodes } from "./command-error.ts";

/** An error as it is printed, and the exit code. */
export interface CommandFailure {
  message: string;
  next: string;
  exitCode: number;
}

/** The server of the failed request. */
interface Server {
  url: string;
  tokenSource: string;
  /** The next step if the server refuses the token. */
  tokenAdvice: string;
}

/** Describes an error: what failed, why, and the next step. */
export function commandFailure(error: unknown, server?: Server): CommandFailure {
  if (error instanceof CommandError) return error;
  if (error instanceof ConnectError && server) return rpcFailure(error, server);
  const message = error instanceof Error ? error.message : String(error);
  return { message: terminalSafe(message), next: nextAfter(error), exitCode: exitCodes.failed };
}

/** Errors of the configuration, the store and of an unverified service contain their next step; errors of the system are looked up by code. */
function nextAfter(error: unknown): string {
  if (error instanceof Error && ["ConfigError", "PeerError", "ServiceAwayError", "StoreUnusable"].includes(error.name))
    return "";
  const code = error instanceof Error && "code" in error ? String(error.code) : "";
  return nextByCode.get(code) ?? "this is unexpected: see the log in the data directory, and report it with that log";
}

/** The reason (ErrorInfo) of a refused rpc, and what it names; undefined if the server gave none. */
export function errorInfoOf(error: unknown): { reason: string; metadata: Record<string, string> } | undefined {
  return error instanceof ConnectError ? error.findDetails(ErrorInfoSchema)[0] : undefined;
}

function rpcFailure(error: ConnectError, server: Server): CommandFailure {
  const info = errorInfoOf(error);
  const exitCode = byCode.get(error.code) ?? exitCodes.failed;
  if (!info) {
    const tls = tlsFailure(error, server.url);
    return tls ? { ...tls, exitCode: exitCodes.unreachable } : { ...unexplained(error, server), exitCode };
  }
  return {
    message: `${terminalSafe(error.rawMessage)} [${terminalSafe(info.reason)}]`,
    next: terminalSafe(nextSteps[info.reason]?.(info.metadata, server) ?? ""),
    exitCode,
  };
}

/** Describes an error without ErrorInfo: no server, a proxy, or another program. */
function unexplained(error: ConnectError, { url, tokenAdvice }: Server): { message: string; next: string } {
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
        message: `the server at ${url} requires a token (${message})`,
        next: tokenAdvice,
      };
    case Code.Unimplemented:
      return {
        message: `the server at ${url} does not know this request (${message})`,
        next: "check that it is a Toolgate of this version",
      };
    case Code.Internal:
      return { message, next: "see the server's log; give its operator the request id" };
    default:
      return { message: `${message} [${Code[error.code]}]`, next: "try again; see the server's log" };
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
    "the address is in use: stop that program, or choose another one with --listen HOST:PORT (:0 takes any port), for health with health_listen",
  ],
  ["EADDRNOTAVAIL", "this machine has no such address: choose another one with --listen HOST:PORT"],
  ["EACCES", "check its permissions, or choose another path"],
  ["EPERM", "check its permissions, or choose another path"],
  ["ENOENT", "check the spelling, or create it"],
  ["ENOTDIR", "check the spelling: a part of the path is not a directory"],
  ["EEXIST", "choose another path: this one is not a directory"],
  ["EISDIR", "choose a file: this is a directory"],
  ["ENOSPC", "free space on the disk, then try again"],
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
    "check the spelling and the token: sessions of other principals are hidden; `call` without --session starts a new one",
  NO_SUCH_CALL: () => "see what the session did with `toolgate watch SESSION`",
  NO_SUCH_PERMISSION: () => "see what is open with `toolgate asks`",
  NO_SUCH_GRANT: () => "see what was granted with `toolgate grants --all`",
  NO_SUCH_OUTPUT: () => "outputs are stored for 7 days; run the tool again",
  INVALID_RANGE: () => "choose a range before the end of the output",
  CALL_ID_REUSED: () => "leave --call-id out to make a new call, or repeat the same tool and input to attach to it",
  SESSION_DIFFERS: () => "use another session id, or the same parent and workspace",
  SESSION_CLOSED: () => "leave --session out to start a new one",
  CALL_EXPIRED: () => "leave --call-id out to run it again as a new call",
  STOPPED: () => "see what is stopped with `toolgate stop`; `toolgate resume` ends it",
  ALREADY_ANSWERED: () => "nothing is left to do; see what is still open with `toolgate asks`",
  ASK_CLOSED: () => "see what is still open with `toolgate asks`",
  ASK_CHANGED: () => "review it again with `toolgate asks`, then answer",
  REPLY_ID_REUSED: () => "see what is still open with `toolgate asks`, then answer again",
  NOT_EDITABLE: () =>
    "the call is already running, or asks a question: answer it without an edit, or cancel it where it was started",
  NO_OFFER: () => "it is still open: answer `once`, or choose an offer that `toolgate asks` shows",
  INVALID_ANSWERS: () =>
    "it is still open: see its questions with `toolgate asks`, then answer with `--answer` for each",
  UNAUTHENTICATED: (_, { tokenAdvice }) => tokenAdvice,
  ROLE_MISSING: ({ roles = "" }, { tokenSource }) =>
    `it needs the role ${roles.replaceAll(",", " or ")}, but ${tokenSource}; name another with --token-file FILE`,
  OWN_CALL: () => "the caller cannot answer its own request: answer with an approver's token (--token-file FILE)",
  QUOTA_EXCEEDED: () => "wait until open calls or permission requests end, then try again",
  HISTORY_TRIMMED: ({ first_seq }) =>
    `continue with the stored events: --after ${Math.max(0, Number(first_seq ?? 1) - 1)}`,
  STORE_CHANGED: () => "the outcome of the call is unknown: check its effects before you run it again as a new call",
  STORE_UNAVAILABLE: () => "try again with the same ids: nothing is run twice",
  DRAINING: () => "try again with the same ids: nothing is run twice",
  HOOK_FAILED: ({ plugin = "of the server" }) =>
    `correct the plugin ${plugin}, or remove it from the server's configuration`,
  ORIGIN_REFUSED: () => "open the console at the address of the service",
  NO_SUCH_CREDENTIAL: () => "see them with `toolgate token list`",
  POLICY_REFUSED: () => "correct the rules, and check the file with `toolgate check-config FILE`",
  METHOD_TOO_WEAK: ({ method = "" }) =>
    method === ""
      ? "open the request behind its link, or add `approve = true` to its [[notify]] entry"
      : "open the request in the console; `toolgate asks` prints its link",
  RECEIPT_REFUSED: () => "open the request in the console again, and sign it there",
  NOT_ELIGIBLE: ({ from = "" }) =>
    `ask ${from === "" ? "another person" : `a member of ${from}`} to approve it, or reject it`,
  REASON_MISSING: () => "say why with --reason TEXT",
  NOT_SHOWN: () => "open the request behind its link, which shows all of it",
  NO_SUCH_PERSON: () => "see them with `toolgate people`",
  NO_SUCH_CHANNEL: () => "see them with `toolgate channel`",
  PROVIDER_UNAVAILABLE: () => "try again, or sign in by a code of *Add a device* with `toolgate login CODE`",
  NO_SUCH_ASSIGNMENT: () => "report with the token and the assignment with which the call began",
  ALREADY_BEGUN: () => "do not run the tool: the approval was given out before; ask with a new call id",
  RUNNER_SILENT: () => "connect the runner again, and send a beat at least every beat_ms",
  RUNNER_REPLACED: () => "give each process of the runner its own instance_id",
  WORKER_PROTOCOL: () => "use a version of the worker's library that speaks the service's protocol",
  WORKER_SUPERSEDED: () => "give each process of the worker its own instance_id",
  WORKER_SILENT: () => "connect the worker again, and send a beat at least every beat_ms",
  NO_SUCH_CONNECTOR: () => "see them with `toolgate connect --list`",
  NO_SUCH_SOURCE: () => "see them with `toolgate sources`",
  SOURCE_CHANGED: () => "read it again with `toolgate sources NAME`",
  REQUEST_TOO_LARGE: () => "send less in one request; GetServerInfo reports the limit",
  OVERLOADED: () => "try again in a moment with the same ids: nothing is run twice",
  BODY_TIMEOUT: () => "send the whole request sooner, and try again with the same ids",
  NOT_SERVED: () => "check the address: this server has nothing at that path",
  DEADLINE_PASSED: () => "try again with the same ids and a later deadline: nothing is run twice",
  STORE_DAMAGED: () => "ask the operator to restore a backup with `toolgate restore`",
  BACKUP_UNSUPPORTED: () => "make the backup with the tools of Redis",
  HOST_REFUSED: () => "use a host name that the server's configuration lists",
};

/** Describes a failed TLS handshake and the next step; undefined if the error has another cause. */
function tlsFailure(error: ConnectError, url: string): { message: string; next: string } | undefined {
  const code = codeOf(error.cause);
  const detail = terminalSafe(error.rawMessage);
  if (/^(UNABLE_TO_|SELF_SIGNED_|DEPTH_ZERO_|CERT_)/.test(code)) {
    return {
      message: `the certificate of ${url} is not trusted (${detail})`,
      next: "name the authority that signed it with --ca FILE",
    };
  }
  if (code === "ERR_TLS_CERT_ALTNAME_INVALID") {
    return {
      message: `the certificate of ${url} is for another name (${detail})`,
      next: "use a host name that the certificate has",
    };
  }
  // A server without TLS closes the connection, or answers in plain text.
  if (code === "ERR_SSL_WRONG_VERSION_NUMBER" || detail.includes("before secure TLS connection was established")) {
    return { message: `the server at ${url} does not speak TLS`, next: "use http://" };
  }
  if (code === "ERR_SSL_TLSV13_ALERT_CERTIFICATE_REQUIRED") {
    return { message: `the server at ${url} requires a client certificate`, next: "add yours with --cert and --key" };
  }
  if (code.startsWith("ERR_OSSL_")) {
    return {
      message: `the client certificate cannot be used (${detail})`,
      next: "name a certificate and its own key, both PEM, with --cert and --key",
    };
  }
  // Plain text to a TLS port, or an untrusted client certificate. Which of the two errors arrives is a race.
  const isCut = url.startsWith("https:") && detail.includes("ECONNRESET");
  if (isCut || detail.startsWith("http/2 stream closed with error code CANCEL")) {
    const next = url.startsWith("https:")
      ? "if it requires client certificates, add one that it trusts with --cert and --key"
      : "if it speaks TLS, use https://";
    return { message: `the server at ${url} closed the connection (${detail})`, next };
  }
  return undefined;
}

/** Waits for the end of a request that may fail with this code. */
export async function unlessRefused(done: Promise<unknown>, code: Code): Promise<void> {
  await done.catch((error: unknown) => {
    if (!(error instanceof ConnectError && error.code === code)) throw error;
  });
}

function codeOf(cause: unknown): string {
  return cause instanceof Error && "code" in cause ? String(cause.code) : "";
}
