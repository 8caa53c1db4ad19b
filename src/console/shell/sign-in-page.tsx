import { useSignal } from "@preact/signals";
import type { SignIn } from "./sign-in.ts";

/** The form for a token, and where to find one. */
export function SignInPage({ signIn }: { signIn: SignIn }) {
  const token = useSignal("");
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
    void signIn.use(token.value.trim());
  };
  return (
    <main class="sign-in">
      <h1>Toolgate</h1>
      <p>Agents ask here for approval. Sign in with a token to see their requests.</p>
      <form onSubmit={submit}>
        <label for="token">Token</label>
        <input
          id="token"
          type="password"
          autocomplete="off"
          required
          value={token}
          onInput={({ currentTarget }) => {
            token.value = currentTarget.value;
          }}
        />
        <button type="submit" class="primary">
          Sign in
        </button>
        {problem !== "" && <p role="alert">{problem}</p>}
      </form>
      <p class="hint">
        <code>toolgate serve</code> prints a link that signs you in. The same token is in the file{" "}
        <code>tokens/approver</code> of the data directory.
      </p>
    </main>
  );
}
