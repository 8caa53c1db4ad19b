import { Code, ConnectError } from "@connectrpc/connect";
import { type ReadonlySignal, signal } from "@preact/signals";
import { type ConsoleConnection, connectConsole } from "../stream/connection.ts";

/** The sign-in state: unknown while connecting, signed out (and why), or signed in with a connection. */
export type SignedIn =
  | { state: "connecting"; problem: string }
  | { state: "out"; problem: string }
  | { state: "in"; connection: ConsoleConnection };

/** Signs in and out of the service that this page came from. */
export interface SignIn {
  readonly current: ReadonlySignal<SignedIn>;
  /** Tries a token; if the service accepts it, it is stored for this tab. */
  use(token: string): Promise<void>;
  leave(): void;
}

const storageKey = "toolgate-token";

/** Signs in with the token of the link that `toolgate serve` prints, otherwise with this tab's token, otherwise without. */
export function createSignIn(): SignIn {
  const current = signal<SignedIn>({ state: "connecting", problem: "" });

  async function use(token: string): Promise<void> {
    for (let pauseMs = 500; ; pauseMs = Math.min(2 * pauseMs, 8_000)) {
      try {
        const connection = await connectConsole(token);
        sessionStorage.setItem(storageKey, token);
        current.value = { state: "in", connection };
        return;
      } catch (error) {
        const { code, rawMessage } = ConnectError.from(error);
        if (code === Code.Unauthenticated) {
          sessionStorage.removeItem(storageKey);
          current.value = { state: "out", problem: token === "" ? "" : rawMessage };
          return;
        }
        current.value = { state: "connecting", problem: rawMessage };
        await new Promise((resolve) => setTimeout(resolve, pauseMs));
      }
    }
  }

  void use(takeFromAddress() ?? sessionStorage.getItem(storageKey) ?? "");
  addEventListener("hashchange", () => {
    const token = takeFromAddress();
    if (token !== undefined) void use(token);
  });
  return {
    current,
    use,
    leave() {
      sessionStorage.removeItem(storageKey);
      current.value = { state: "out", problem: "" };
    },
  };
}

/** Removes the token from the address bar and from the history. */
function takeFromAddress(): string | undefined {
  const token = /^#token=([^&]+)$/.exec(location.hash)?.[1];
  if (token === undefined) return undefined;
  history.replaceState(null, "", location.pathname);
  return decodeURIComponent(token);
}
