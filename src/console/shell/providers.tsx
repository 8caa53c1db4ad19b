import { useAttempt, useLoaded } from "./load.ts";
import { flowKey } from "./sign-in.ts";

/** The buttons with which a person signs in at an identity provider; none if the service has no provider. */
export function Providers() {
  const { value: names = [] } = useLoaded<readonly string[]>(
    async () => (await request("ListSignInProviders", {})).names,
    [],
  );
  const { failure, attempt } = useAttempt();
  const begin = (provider: string) =>
    attempt(async () => {
      const redirectUri = `${location.origin}/auth/callback/${encodeURIComponent(provider)}`;
      const { url, flow } = await request("BeginSignIn", { provider, redirectUri });
      // This tab alone finishes the flow, and shows what it was opened for.
      sessionStorage.setItem(flowKey, JSON.stringify({ provider, flow, hash: location.hash }));
      location.assign(url);
    });
  return (
    <>
      {names.map((name) => (
        <p key={name}>
          <button type="button" class="primary" onClick={() => void begin(name)}>
            Sign in at {name}
          </button>
        </p>
      ))}
      {failure !== "" && <p role="alert">{failure}</p>}
    </>
  );
}

/** Calls an rpc that needs no token, in JSON. */
async function request(rpc: string, body: object) {
  const headers = { "content-type": "application/json" };
  const path = `/opencode.tool.v1.CredentialService/${rpc}`;
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.message);
  return answer;
}
