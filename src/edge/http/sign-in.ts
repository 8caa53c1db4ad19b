import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import { peerUid } from "../../core/peer-uid.ts";
import { RequestError } from "../../core/request-error.ts";
import type { Credentials } from "../../people/credentials.ts";
import type { ProviderSignIns } from "../../people/provider-sign-ins.ts";
import type { Authenticate } from "../api/access.ts";
import { type BrowserSignIn, callbackOf, callbackPath, checkOwnPage, newBrowserToken } from "../api/browser-sign-in.ts";
import { notServed } from "../api/request-failure.ts";
import type { EdgeLimits, RequestHeaders } from "../api/rpc.ts";
import { bodyLimits, readBody } from "../rpc/request-body.ts";
import { headerOf } from "./enter-door.ts";
import { type Handler, type Mount, type Refuse, type Request, type Response, sendWhole } from "./handler.ts";
import type { ByteBudget } from "./socket-limits.ts";

/** Options of the door. */
export interface SignInDoorOptions {
  credentials: Pick<Credentials, "signIn" | "revoke">;
  signIns: Pick<ProviderSignIns, "finish" | "logOut">;
  browser: BrowserSignIn;
  authenticate: Authenticate;
  refuse: Refuse;
  limits: EdgeLimits;
  /** Budget of the bytes of requests that have not arrived whole. */
  budget: ByteBudget;
}

/** Opens the door with which the console signs a browser in and out: only here a response sets a cookie. */
export function signInDoor(options: SignInDoorOptions): Mount[] {
  return [
    { path: "/console/sign-in", methods: ["POST"], handle: serve(options, signIn) },
    { path: "/console/sign-out", methods: ["POST"], handle: serve(options, signOut) },
    { path: callbackPath, methods: ["GET"], handle: sendToPage },
    { path: logoutPath, methods: ["POST"], handle: (request, response) => void logOut(options, request, response) },
  ];
}

/**
 * Hands the response of an identity provider to the page, in the fragment, which no browser sends on. This request has no effect: the
 * page that began the flow finishes it.
 */
function sendToPage({ url = "" }: Request, response: Response): void {
  const [path = "", query = ""] = url.slice(callbackPath.length).split("?", 2);
  response.setHeader("location", `/#sign-in=${encodeURIComponent(providerIn(path))}&${query}`);
  response.setHeader("cache-control", "no-store");
  response.setHeader("referrer-policy", "no-referrer");
  sendWhole(response, 303, "text/plain", "");
}

function providerIn(path: string): string {
  try {
    return decodeURIComponent(path);
  } catch {
    throw notServed("not_found", `${callbackPath}${path} names no provider`);
  }
}

/** Takes the logout token of an identity provider (OpenID Connect Back-Channel Logout 1.0). */
async function logOut(options: SignInDoorOptions, request: Request, response: Response) {
  response.setHeader("cache-control", "no-store");
  try {
    const bounds = { ...bodyLimits(options), maxBytes: maxLogoutBytes };
    const form = new URLSearchParams((await readBody(request, bounds)).toString());
    const [provider = ""] = (request.url ?? "").slice(logoutPath.length).split("?", 1);
    await options.signIns.logOut(providerIn(provider), form.get("logout_token") ?? "");
    sendWhole(response, 200, "text/plain", "");
  } catch (error) {
    const isRefused = error instanceof RequestError && error.reason === ErrorReason.INVALID_MESSAGE;
    const words = { error: "invalid_request", error_description: isRefused ? error.message : "try again" };
    sendWhole(response, isRefused ? 400 : 503, "application/json", JSON.stringify(words));
  }
}

/** A provider sends a logout token as a form. */
const logoutPath = "/auth/logout/";
const maxLogoutBytes = 16_384;

type Serve = (
  options: SignInDoorOptions,
  headers: RequestHeaders,
  request: Request,
  response: Response,
) => Promise<void>;

/** Refuses what no page of this service sends: another origin, or a content type that a form could send. */
function serve(options: SignInDoorOptions, run: Serve): Handler {
  return (request, response) => {
    const headers = { get: (name: string) => headerOf(request, name) };
    const check = async () => {
      checkOwnPage(headers);
      if (headers.get("content-type") !== "application/json")
        throw unusable("the content type must be application/json");
      await run(options, headers, request, response);
    };
    check().catch((error: unknown) => options.refuse(error, request, response));
  };
}

/** Exchanges a code for a credential of this browser: one half of its token goes into a cookie, the other one to the page. */
async function signIn(
  { credentials, signIns, browser, limits, budget }: SignInDoorOptions,
  headers: RequestHeaders,
  request: Request,
  response: Response,
): Promise<void> {
  const body = await readBody(request, bodyLimits({ limits, budget }, true));
  const given = signInOf(body);
  const { cookie, pageKey, token } = newBrowserToken();
  const label = browserNameOf(headers.get("user-agent") ?? "");
  const uid = await peerUid(request.socket);
  const { credential } = await ("code" in given
    ? credentials.signIn({ ...given, label, token, uid })
    : signIns.finish({ ...given, redirectUri: callbackOf(headers, given.provider), label, token, uid }));
  const maxAge = Math.floor((credential.expires - credential.created) / 1_000);
  setCookie(response, headers, browser, cookie, maxAge);
  sendWhole(response, 200, "application/json", JSON.stringify({ pageKey }));
}

/** Revokes the credential of this browser, and removes its cookie. */
async function signOut(
  { credentials, browser, authenticate }: SignInDoorOptions,
  headers: RequestHeaders,
  _request: Request,
  response: Response,
): Promise<void> {
  // Without the header authorization only a cookie can authenticate.
  const { id, ended } = authenticate({ get: (name) => (name === "authorization" ? null : headers.get(name)) });
  if (ended !== undefined) await credentials.revoke(id);
  setCookie(response, headers, browser, "", 0);
  sendWhole(response, 200, "application/json", "{}");
}

function setCookie(
  response: Response,
  headers: RequestHeaders,
  browser: BrowserSignIn,
  value: string,
  maxAge: number,
): void {
  const attributes = ["Path=/", `Max-Age=${maxAge}`, "HttpOnly", "SameSite=Strict"];
  // The browser names the scheme that it uses, also where a proxy has the certificate.
  if (headers.get("origin")?.startsWith("https:")) attributes.push("Secure");
  response.setHeader("set-cookie", [`${browser.cookieName()}=${value}`, ...attributes].join("; "));
  response.setHeader("cache-control", "no-store");
}

type GivenSignIn = { code: string; name: string } | { provider: string; flow: string; response: string };

function signInOf(body: Buffer): GivenSignIn {
  try {
    const { code, name = "", provider, flow, response } = JSON.parse(body.toString());
    if (isShort(code) && isShort(name)) return { code, name };
    if (isShort(provider) && isShort(flow) && typeof response === "string") return { provider, flow, response };
  } catch {
    // The same refusal as for JSON without a code.
  }
  throw unusable('the body must be JSON like {"code": "…"}');
}

/** Names a browser by what it sends, such as "Firefox on Linux". */
function browserNameOf(userAgent: string): string {
  const name = /(Edg|OPR|Firefox|Chrome|Safari)\//.exec(userAgent)?.[1] ?? "Browser";
  const system = /(Android|iPhone|iPad|Windows|Mac OS X|Linux)/.exec(userAgent)?.[1];
  const known = ({ Edg: "Edge", OPR: "Opera" } as Record<string, string>)[name] ?? name;
  return system === undefined ? known : `${known} on ${system}`;
}

const isShort = (text: unknown) => typeof text === "string" && text.length <= 64;

function unusable(fact: string): RequestError {
  return new RequestError(ErrorReason.INVALID_MESSAGE, `this is no request of the console: ${fact}`);
}
