import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { RequestError } from "../../core/request-error.ts";
import { checkOwnPage } from "../api/browser-sign-in.ts";
import type { Request } from "./handler.ts";

/** Refuses a page of another origin: it could reach a service on the machine of its reader. */
export function checkOrigin(origins: readonly string[], request: Request, path: string): void {
  const origin = headerOf(request, "origin");
  if (origin === null || origins.includes(origin)) return;
  try {
    checkOwnPage({ get: (name) => headerOf(request, name) });
  } catch {
    const fact = `pages of ${JSON.stringify(origin)} may not call ${path}; add the origin to origins in toolgate.toml`;
    throw new RequestError(ErrorReason.ORIGIN_REFUSED, fact, { origin });
  }
}

/** Returns a header of a request, of several the first one. */
export function headerOf({ headers }: Request, name: string): string | null {
  const value = headers[name];
  return Array.isArray(value) ? (value[0] ?? null) : (value ?? null);
}
