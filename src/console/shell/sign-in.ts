import { Code, ConnectError } from "@connectrpc/connect";
import { type ReadonlySignal, signal } from "@preact/signals";
import { type ConsoleConnection, connectConsole, proofHeader, type SignInProof } from "../stream/connection.ts";
import { failureText } from "./load.ts";
import { decodePart } from "./route.ts";

/** The sign-in state: unknown while connecting, signed out (and why), or signed in with a connection. */
export type SignedIn =
  | { state: "connecting"; problem: string }
  | { state: "out"; problem: string }
  | { state: "in"; connection: ConsoleConnection };

/** Signs in and out of the service that this page came from. */
export interface SignIn {
  readonly current: ReadonlySignal<SignedIn>;
  /** Tries what a person typed: a one-time code, a link with one, or a token. */
  use(text: string): Promise<void>;
  /** Signs out; a browser's own credential is revoked. */
  leave(): Promise<void>;
}

/** This tab's token. */
const tokenKey = "toolgate-token";
/** This browser's half of its token; the other half is in a cookie. Pages of other ports cannot read it. */
const pageKeyKey = "toolgate-page-key";
/** The sign-in at an identity provider that this tab has begun. */
export const flowKey = "toolgate-flow";

/** Signs in with the link that brought the browser here, otherwise with this tab's token, otherwise as this browser. */
export function createSignIn(): SignIn {
  const current = signal<SignedIn>({ state: "connecting", problem: "" });

  async function connect(proof: SignInProof | undefined): Promise<void> {
    for (let pauseMs = 500; ; pauseMs = Math.min(2 * pauseMs, 8_000)) {
      try {
        current.value = { state: "in", connection: await connectConsole(proof) };
        return;
      } catch (error) {
        const { code, rawMessage } = ConnectError.from(error);
        if (code === Code.Unauthenticated) {
          forget();
          current.value = { state: "out", problem: proof === undefined ? "" : rawMessage };
          return;
        }
        current.value = { state: "connecting", problem: rawMessage };
        await new Promise((resolve) => setTimeout(resolve, pauseMs));
      }
    }
  }

  async function useToken(token: string): Promise<void> {
    sessionStorage.setItem(tokenKey, token);
    await connect({ token });
  }

  async function useOnce(proof: Exclude<Secret, { token: string }>): Promise<void> {
    const { pageKey = "", problem = "" } = await exchange(proof);
    if (problem !== "") {
      current.value = { state: "out", problem };
      return;
    }
    sessionStorage.removeItem(tokenKey);
    localStorage.setItem(pageKeyKey, pageKey);
    await connect({ pageKey });
  }

  const useSecret = (secret: Secret) => ("token" in secret ? useToken(secret.token) : useOnce(secret));
  const secret = takeFromAddress();
  void (secret === undefined ? connect(storedProof()) : useSecret(secret));
  addEventListener("hashchange", () => {
    const given = takeFromAddress();
    if (given !== undefined) void useSecret(given);
  });
  // Another tab of this browser has signed out.
  addEventListener("storage", ({ key, newValue }) => {
    if (key === pageKeyKey && newValue === null && sessionStorage.getItem(tokenKey) === null)
      current.value = { state: "out", problem: "" };
  });
  return {
    current,
    use: (text) => useSecret(secretIn(text)),
    async leave() {
      const proof = storedProof();
      forget();
      current.value = { state: "out", problem: "" };
      if (proof === undefined || !("pageKey" in proof)) return;
      const problem = await endSignIn(proof).catch(failureText);
      if (problem !== "" && current.peek().state === "out") {
        const why = `The service did not end this sign-in (${problem}). End it under People.`;
        current.value = { state: "out", problem: why };
      }
    },
  };
}

/** Ends the sign-in of this browser, and its pushes with it; returns why the service did not, otherwise an empty text. */
async function endSignIn(proof: SignInProof): Promise<string> {
  const response = await post("/console/sign-out", {}, proof);
  const isEnded = response.ok || response.status === 401;
  return isEnded ? "" : `${response.status} ${response.statusText}`.trim();
}

type Secret = { code: string } | { token: string } | { provider: string; flow: string; response: string };

function storedProof(): SignInProof | undefined {
  const token = sessionStorage.getItem(tokenKey);
  if (token !== null) return { token };
  const pageKey = localStorage.getItem(pageKeyKey);
  return pageKey === null ? undefined : { pageKey };
}

/** Removes what `storedProof` would return. */
function forget(): void {
  if (sessionStorage.getItem(tokenKey) === null) localStorage.removeItem(pageKeyKey);
  sessionStorage.removeItem(tokenKey);
}

/** Exchanges a proof that counts once for a credential of this browser; the response sets the cookie. */
async function exchange(proof: object): Promise<{ pageKey?: string; problem?: string }> {
  try {
    const response = await post("/console/sign-in", proof);
    const answer = await response.json();
    return response.ok ? { pageKey: String(answer.pageKey) } : { problem: String(answer.message) };
  } catch {
    return { problem: "The service does not answer; try again." };
  }
}

function post(path: string, body: object, proof?: SignInProof): Promise<Response> {
  const headers = [["content-type", "application/json"] as [string, string], ...proofHeader(proof)];
  return fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
}

/** Reads what a person typed. */
function secretIn(text: string): Secret {
  const [, linked] = /#code=([^&]+)$/.exec(text) ?? [];
  if (linked !== undefined) return { code: decodePart(linked) };
  return isCode(text) ? { code: text } : { token: text };
}

/** A code has four groups of four characters. */
function isCode(text: string): boolean {
  return /^([0-9a-z]{4}[- ]){3}[0-9a-z]{4}$/i.test(text);
}

/** Removes the secret from the address bar and from the history. After a sign-in at a provider the page is back that began it. */
function takeFromAddress(): Secret | undefined {
  const [, kind = "", text = ""] = /^#(code|token|sign-in)=([^&]+)/.exec(location.hash) ?? [];
  if (kind === "") return undefined;
  const name = decodePart(text);
  const response = location.hash.slice(location.hash.indexOf("&") + 1);
  const { provider, flow = "", hash = "" } = JSON.parse(sessionStorage.getItem(flowKey) ?? "{}");
  sessionStorage.removeItem(flowKey);
  history.replaceState(null, "", location.pathname + (kind === "sign-in" ? hash : ""));
  if (kind === "sign-in") return { provider: name, flow: provider === name ? flow : "", response };
  return kind === "code" ? { code: name } : { token: name };
}
