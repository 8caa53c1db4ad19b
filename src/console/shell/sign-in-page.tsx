import { useSignal } from "@preact/signals";
import type { SignIn } from "./sign-in.ts";

/** The form for a code or a token, and where to find one. */
export function SignInPage({ signIn }: { signIn: SignIn }) {
  const secret = useSignal("");
  const signedIn = signIn.current.value;
  const problem = signedIn.state === "in" ? "" : signedIn.problem;
  if (signedIn.state === "connecting") {
    return (
      <main class="sign-in" aria-busy="true">
        <h1>Toolgate</h1>
        <p role="status">
          {problem === "" ? "Connecting…" : `The service does not answer (${problem}). Trying again…`}
        </p>
      </main>
    );
  }
  const submit = (event: Event) => {
    event.preventDefault();
    void signIn.use(secret.value.trim());
  };
  return (
    <main class="sign-in">
      <h1>Toolgate</h1>
      <p>Agents ask here for approval. Sign in to see their requests.</p>
      <form onSubmit={submit}>
        <label for="secret">Code or token</label>
        <input
          id="secret"
          type="password"
          autocomplete="off"
          required
          value={secret}
          onInput={({ currentTarget }) => {
            secret.value = currentTarget.value;
          }}
        />
        <button type="submit" class="primary">
          Sign in
        </button>
        {problem !== "" && <p role="alert">{problem}</p>}
      </form>
      <p class="hint">
        <code>toolgate serve</code> prints a link with a code at its terminal, and a signed-in browser shows one under{" "}
        <i>Add a device</i>. Without either, <code>toolgate token create --role approver</code> prints a token.
      </p>
    </main>
  );
}
