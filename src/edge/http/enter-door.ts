import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Principal } from "../../core/principal.ts";
import { RequestError } from "../../core/request-error.ts";
import type { Authenticate } from "../api/access.ts";
import { checkOwnPage } from "../api/browser-sign-in.ts";
import { type Request, type Response, signalOfLeaving } from "./handler.ts";

/** Options of a door for programs that are not clients of the rpcs. */
export interface EntryOptions {
  authenticate: Authenticate;
  /** Web origins whose pages may call. */
  origins: readonly string[];
  /** Aborted when the replica drains. */
  shutdownSignal: AbortSignal;
}

/**
 * Checks the headers of a request, so that the body of a refused one is never read. Returns its sender, and the signal that is aborted
 * when the client leaves or its credential ends. A door that holds requests ends them at a drain as well, each in its form.
 */
export function enterDoor(
  { authenticate, origins, shutdownSignal }: EntryOptions,
  request: Request,
  response: Response,
  place: string,
): { principal: Principal; signal: AbortSignal } {
  shutdownSignal.throwIfAborted();
  response.setHeader("cache-control", "no-store");
  checkOrigin(origins, request, place);
  const principal = senderOf(authenticate, request);
  const left = signalOfLeaving(response);
  return { principal, signal: principal.ended === undefined ? left : AbortSignal.any([left, principal.ended]) };
}

/** Returns the sender of a request, which only its header authorization names: a browser sends a cookie for any page. */
export function senderOf(authenticate: Authenticate, request: Request): Principal {
  return authenticate({ get: (name) => (name === "authorization" ? headerOf(request, name) : null) });
}

/** Refuses a page of another origin: it could reach a service on the machine of its reader. */
function checkOrigin(origins: readonly string[], request: Request, place: string): void {
  const origin = headerOf(request, "origin");
  if (origin === null || origins.includes(origin)) return;
  try {
    checkOwnPage({ get: (name) => headerOf(request, name) });
  } catch {
    const fact = `pages of ${JSON.stringify(origin)} may not call ${place}; add the origin to origins in toolgate.toml`;
    throw new RequestError(ErrorReason.ORIGIN_REFUSED, fact, { origin });
  }
}

/** Checks for a body of JSON, which a page of another origin can send only with permission. */
export function isJson(request: Request): boolean {
  return /^application\/json\s*(;|$)/i.test(headerOf(request, "content-type") ?? "");
}

/** Returns a header of a request, of several the first one. */
export function headerOf({ headers }: Request, name: string): string | null {
  const value = headers[name];
  return Array.isArray(value) ? (value[0] ?? null) : (value ?? null);
}
