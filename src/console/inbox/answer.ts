import type { JsonObject } from "@bufbuild/protobuf";
import { type CallOptions, Code, ConnectError } from "@connectrpc/connect";
import { type PasskeyReceipt, Shown } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { countOf } from "../../view/quantities.ts";
import { retryReply } from "../../view/reply.ts";
import type { ConsoleConnection } from "../stream/connection.ts";

/** An approver's answer to all asks of a call. */
export type AnswerOutcome =
  | { reply: typeof PermissionReply.ONCE; input?: JsonObject; answers?: { values: string[] }[]; reason?: string }
  | { reply: typeof PermissionReply.ALWAYS; offerId: string; hours: number; times: number; reason?: string }
  | { reply: typeof PermissionReply.REJECT; message: string; all?: RejectScope; equal?: readonly AskRef[] };

/** Open requests to reject together with the one that is shown: those of its session and descendants, or of its agent. */
export type RejectScope = "session" | "agent";

/** A request as an answer names it; the digest binds the answer to what was shown. */
type AskRef = Pick<PermissionRequest, "sessionId" | "id" | "digest">;

/** Returns a new id for an answer. A repeated answer with the same id counts once. */
export function newReplyId(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The report of an answer that the service has recorded, but for `unsent` of the equal calls. */
export function sentWords(answer: AnswerOutcome, unsent: number): string {
  if (unsent > 0) return `${countOf(unsent, "equal call")} may still wait. Reject them.`;
  if (answer.reply === PermissionReply.REJECT)
    return (answer.all ?? answer.equal) === undefined ? "Sent: rejected" : "Sent: rejected all";
  if (answer.reply === PermissionReply.ALWAYS) return "Sent: approved always";
  if (answer.answers !== undefined) return "Sent: answered";
  return answer.input === undefined ? "Sent: approved once" : "Sent: edited";
}

/** The report of an answer that failed. */
export function unsentWords(error: unknown): string {
  const { code, rawMessage } = ConnectError.from(error);
  if (isUncertain(code))
    return "This may have been sent: no response. It cannot arrive later. Try again; it counts once.";
  return `Not sent: ${rawMessage}`;
}

function isUncertain(code: Code): boolean {
  return [Code.DeadlineExceeded, Code.Unavailable, Code.Unknown, Code.Canceled].includes(code);
}

/** The time to wait for the service before an answer is sent. */
const reachMs = 5_000;
/** The time to wait for the response to an answer; the service takes none that is older. */
const answerMs = 10_000;
/** Answers to equal calls that are sent at the same time. */
const maxAtOnce = 12;

/** Headers that keep an answer from being taken later: the service refuses one that arrives long after this time of its clock. */
type AnswerHeaders = [name: string, value: string][];

const hourMs = 3_600_000;

/** Returns when the grant of an answer ends, in ms since the epoch; 0: as offered. The clock of this machine may be wrong. */
export function grantEnd(answer: AnswerOutcome, headers: AnswerHeaders): number {
  const { hours } = { hours: 0, ...answer };
  return hours === 0 ? 0 : (Number(headers[0]?.[1]) || Date.now()) + hours * hourMs;
}

/**
 * Asks the service for its time. Into a network that stalled nothing is sent: the bytes of an answer would leave this machine
 * when the network is back, even after the page has withdrawn it.
 */
export async function reachService(
  { tools }: Pick<ConsoleConnection, "tools">,
  signal: AbortSignal,
): Promise<AnswerHeaders> {
  let time = "";
  const onHeader = (headers: Headers) => {
    time = headers.get("toolgate-time") ?? "";
  };
  await tools.getServerInfo({}, { signal, timeoutMs: reachMs, onHeader });
  return time === "" ? [] : [["toolgate-time", time]];
}

/** Options of sending an answer. */
interface AnswerSent {
  replyId: string;
  /** The end of the grant, in ms since the epoch. */
  expires: number;
  headers: AnswerHeaders;
  signal: AbortSignal;
  shown: Shown;
  /** The signature of a passkey, where the request needs one. */
  receipt?: PasskeyReceipt | undefined;
}

/**
 * Answers all open asks of a call, or rejects all of a session or agent, in one step; once it resolves, this answer counts. Equal
 * calls are rejected each, since each answer names the digest of what was shown; returns how many of them may still wait.
 */
export async function sendAnswer(
  connection: Pick<ConsoleConnection, "permissions" | "tools">,
  request: PermissionRequest,
  answer: AnswerOutcome,
  { replyId, expires, headers, signal, shown, receipt }: AnswerSent,
): Promise<number> {
  const { permissions } = connection;
  const {
    all,
    equal = [],
    message = "",
    hours: _,
    ...rest
  } = { message: undefined, all: undefined, equal: undefined, hours: 0, ...answer };
  const retry = (headers: AnswerHeaders, send: (options: CallOptions) => Promise<unknown>) => {
    const end = performance.now() + answerMs;
    return retryReply(() => {
      signal.throwIfAborted();
      return send({ timeoutMs: Math.max(1, Math.ceil(end - performance.now())), signal, headers });
    });
  };
  if (all !== undefined) {
    const scope = all === "session" ? { sessionId: request.sessionId } : { agent: request.agent };
    await retry(headers, (options) => permissions.rejectPermissions({ ...scope, message }, options));
    return 0;
  }
  const respond = ({ sessionId, id, digest }: AskRef, headers: AnswerHeaders, shown: Shown) => {
    const proof = receipt && { receipt };
    const target = { sessionId, permissionId: id, expectedDigest: digest, replyId, wholeCall: true, shown, ...proof };
    const given = { ...rest, message, expires, ...target };
    return retry(headers, (options) => permissions.respondToPermission(given, options));
  };
  await respond(request, headers, shown);
  // One that was answered in the meantime has an outcome; one that has changed stays in the list.
  const isLeft = (error: unknown) => ConnectError.from(error).code !== Code.FailedPrecondition;
  for (let at = 0; at < equal.length; at += maxAtOnce) {
    const now = reachService(connection, signal);
    const some = equal.slice(at, at + maxAtOnce).map(async (one) => respond(one, await now, Shown.UNKNOWN));
    const left = (await Promise.allSettled(some)).filter((one) => one.status === "rejected" && isLeft(one.reason));
    if (left.length > 0) return equal.length - at - some.length + left.length;
  }
  return 0;
}
