import { hash, randomBytes } from "node:crypto";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { RequestError } from "../../core/request-error.ts";
import type { RequestHeaders } from "./rpc.ts";

/**
 * The sign-in of browsers. A browser's token has two halves: one in a cookie that no script can read, and one in the storage
 * of the page. Cookies do not distinguish ports, so another server on the same host receives the cookie; pages of other ports
 * cannot read the storage, so that server lacks the other half.
 */
export interface BrowserSignIn {
  /** Name of the cookie: one for each store, since services on the same host share cookies. */
  cookieName(): string;
}

/** Header in which the page sends its half of the token. */
const pageKeyHeader = "toolgate-page-key";

/** Creates the names for the store of this service. */
export function createBrowserSignIn(storeId: () => string): BrowserSignIn {
  return { cookieName: () => `toolgate-${hash("sha256", storeId(), "hex").slice(0, 12)}` };
}

/** Creates the halves of a token, and the token. */
export function newBrowserToken(): { cookie: string; pageKey: string; token: string } {
  const [cookie, pageKey] = [randomBytes(32).toString("base64url"), randomBytes(32).toString("base64url")];
  return { cookie, pageKey, token: `${cookie}.${pageKey}` };
}

/** Returns the token of a request from a signed-in page; undefined if the request has no cookie of this service. */
export function browserTokenOf(headers: RequestHeaders, browser: BrowserSignIn): string | undefined {
  const cookie = cookieOf(headers.get("cookie") ?? "", browser.cookieName());
  if (cookie === undefined) return undefined;
  checkOwnPage(headers);
  return `${cookie}.${headers.get(pageKeyHeader) ?? ""}`;
}

/** Refuses a request that no page of this service sent. Browsers add Origin to every POST, and pages cannot change it. */
export function checkOwnPage(headers: RequestHeaders): void {
  const origin = headers.get("origin") ?? "";
  const host = headers.get("host") ?? "";
  if (
    URL.canParse(origin) &&
    host !== "" &&
    new URL(origin).host === new URL(`${new URL(origin).protocol}//${host}`).host
  )
    return;
  throw new RequestError(
    ErrorReason.ORIGIN_REFUSED,
    `a browser's sign-in counts only for the pages of this service, and this request is from "${origin}"; open the console at its own address, or behind a proxy let it pass the Host header on`,
    { origin },
  );
}

/** Returns the address of the page that sends a request to which an identity provider sends its person back. */
export const callbackOf = (headers: RequestHeaders, provider: string) =>
  `${headers.get("origin")}${callbackPath}${encodeURIComponent(provider)}`;

/** The path of the addresses to which identity providers send a person back. */
export const callbackPath = "/auth/callback/";

function cookieOf(header: string, name: string): string | undefined {
  for (const pair of header.split(";")) {
    const at = pair.indexOf("=");
    if (pair.slice(0, at).trim() === name) return pair.slice(at + 1).trim();
  }
  return undefined;
}
