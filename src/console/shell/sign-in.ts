import { Code, ConnectError } from "@connectrpc/connect";
import { type ReadonlySignal, signal } from "@preact/signals";
import { type ConsoleConnection, connectConsole } from "../stream/connection.ts";

/** Whether one is signed in: not yet known, not (and why), or with a connection. */
export type SignedIn =
  | { state: "connecting"; problem: string }
  | { state: "out"; problem: string }
  | { state: "in"; connection: ConsoleConnection };

/** Signs in and out of the service that this page came from. */
export interface SignIn {
  readonly current: ReadonlySignal<SignedIn>;
  /** Tries a token; it is kept for this tab if the service takes it. */
  use(token: string): Promise<void>;
  leave(): void;
}

const kept = "toolgate-token";

/** Takes the token from the link that `toolgate serve` prints, else the one of this tab, else tries without. */
export function createSignIn(): SignIn {
  const current = signal<SignedIn>({ state: "connecting", problem: "" });

  async function use(token: string): Promise<void> {
    for (let pauseMs = 500; ; pauseMs = Math.min(2 * pauseMs, 8_000)) {
      try {
        const connection = await connectConsole(token);
        sessionStorage.setItem(kept, token);
        current.value = { state: "in", connection };
        return;
      } catch (error) {
        const { code, rawMessage } = ConnectError.from(error);
        if (code === Code.Unauthenticated) {
          sessionStorage.removeItem(kept);
          current.value = { state: "out", problem: token === "" ? "" : rawMessage };
          return;
        }
        current.value = { state: "connecting", problem: rawMessage };
        await new Promise((resolve) => setTimeout(resolve, pauseMs));
      }
    }
  }

  void use(takeFromAddress() ?? sessionStorage.getItem(kept) ?? "");
  addEventListener("hashchange", () => {
    const token = takeFromAddress();
    if (token !== undefined) void use(token);
  });
  return {
    current,
    use,
    leave() {
      sessionStorage.removeItem(kept);
      current.value = { state: "out", problem: "" };
    },
  };
}

/** Neither the address bar nor the history keeps the token. */
function takeFromAddress(): string | undefined {
  const token = /^#token=([^&]+)$/.exec(location.hash)?.[1];
  if (token === undefined) return undefined;
  history.replaceState(null, "", location.pathname);
  return decodeURIComponent(token);
}
