/** An identity provider: oidc-provider, in its own process. It prints its address; commands arrive as messages. */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

/** A command of a test. */
export type Command =
  | { is: "client"; redirectUris: string[]; logoutUri: string }
  | { is: "account"; account: string; groups: string[] }
  | { is: "logout"; account: string; sid: string }
  | { is: "away"; isAway: boolean };

/** The part of the library that is used here; it brings no types. */
interface OidcProvider {
  callback(): (request: IncomingMessage, response: ServerResponse) => void;
  interactionFinished(request: IncomingMessage, response: ServerResponse, result: object): Promise<void>;
  Client: { find(id: string): Promise<{ backchannelLogout(account: string, sid: string): Promise<void> }> };
  Grant: new (of: object) => { addOIDCScope(scope: string): void; save(): Promise<string> };
}

const { default: Provider } = await import(process.argv[2] ?? "");
const clientId = "toolgate";
const deviceGrant = "urn:ietf:params:oauth:grant-type:device_code";
const groupsOf = new Map<string, string[]>();
let account = "";
let isAway = false;
let provider: OidcProvider;

const server = createServer(async (request, response) => {
  if (isAway) return void response.writeHead(503).end();
  if (!request.url?.startsWith("/interaction/")) return provider.callback()(request, response);
  // The account that was named last is at the keyboard, and consents.
  await provider.interactionFinished(request, response, { login: { accountId: account }, consent: {} });
});
await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
const issuer = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;

function makeProvider({ redirectUris, logoutUri }: Extract<Command, { is: "client" }>): OidcProvider {
  return new Provider(issuer, {
    clients: [
      {
        ...{ client_id: clientId, client_secret: "a-secret-for-tests", redirect_uris: redirectUris },
        ...{ application_type: "native", grant_types: ["authorization_code", "refresh_token", deviceGrant] },
        ...{ backchannel_logout_uri: logoutUri, backchannel_logout_session_required: true },
      },
    ],
    // ID tokens have no claims of scopes, as the standard wants it: groups come from the user info.
    scopes: ["openid", "profile", "groups", "offline_access"],
    claims: { openid: ["sub"], profile: ["name"], groups: ["groups"], sid: null },
    features: {
      backchannelLogout: { enabled: true },
      deviceFlow: { enabled: true },
      devInteractions: { enabled: false },
    },
    // Its own fetch refuses addresses of this machine, where the service is.
    fetch: (url: string, { dispatcher, ...options }: RequestInit & { dispatcher?: unknown }) => fetch(url, options),
    interactions: { url: (_context: unknown, { uid }: { uid: string }) => `/interaction/${uid}` },
    issueRefreshToken: async () => true,
    rotateRefreshToken: true,
    findAccount: (_context: unknown, id: string) => ({
      accountId: id,
      claims: async () => ({ sub: id, name: `${id} of corp`, groups: groupsOf.get(id) ?? [] }),
    }),
    async loadExistingGrant({ oidc }: { oidc: { provider: OidcProvider; session: { accountId: string } } }) {
      const grant = new oidc.provider.Grant({ clientId, accountId: oidc.session.accountId });
      grant.addOIDCScope("openid profile groups offline_access");
      await grant.save();
      return grant;
    },
  });
}

process.on("message", async (command: Command) => {
  if (command.is === "client") provider = makeProvider(command);
  if (command.is === "account") {
    account = command.account;
    groupsOf.set(account, command.groups);
  }
  if (command.is === "away") isAway = command.isAway;
  if (command.is === "logout") {
    const client = await provider.Client.find(clientId);
    await client.backchannelLogout(command.account, command.sid);
  }
  process.send?.({ done: command.is });
});
process.on("disconnect", () => process.exit());
process.send?.({ done: issuer });
