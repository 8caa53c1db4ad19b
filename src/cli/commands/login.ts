import { on, once } from "node:events";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { hostname, userInfo } from "node:os";
import { setTimeout as delay } from "node:timers/promises";
import { Code, ConnectError } from "@connectrpc/connect";
import type { Command } from "commander";
import { CreateCodeResponseSchema, type SignInResponse } from "../../../gen/opencode/tool/v1/credential_service_pb.ts";
import type { Person } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { findLogins, loginFileOf, removeLogin, saveLogin } from "../../client/stored-logins.ts";
import { usingServer, withScreen, withServer } from "../command.ts";
import { enforcementLine, enforcementWord } from "../connect/show.ts";
import { connectServer, type ServerConnection, serverWords } from "../connection/connection.ts";
import { readCertificates, serverUrl } from "../connection/server-address.ts";
import type { CliContext, CliProcess } from "../context.ts";
import { UsageError } from "../failure/command-error.ts";
import { askAtTerminal } from "../terminal/confirm.ts";
import { hasTerminal } from "../terminal/prompt.ts";
import type { Screen } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { commandLine, signInLink } from "../view/words.ts";

/** Defines `toolgate login`. */
export function defineLogin(command: Command, context: CliContext): void {
  command
    .description("Sign this terminal in with a one-time code, for 30 days, or at an identity provider of the service")
    .argument("[code]", "the code, or the link that `toolgate serve` printed (default: it asks at the terminal)")
    .option("--name <name>", "your name, if the code makes a new person (default: it asks at the terminal)")
    .option("--provider <name>", "sign in at this identity provider, with a browser on this machine")
    .option("--device", "with --provider: enter a code at the provider, with a browser on any machine")
    .option("--new-code", "signed in already: print a new code for another device")
    .addHelpText("after", loginHelp)
    .action((given: string | undefined, { newCode = false, name, provider, device }: LoginFlags) =>
      newCode
        ? withServer(context, command, "approver", printNewCode)
        : withScreen(context, command, async (screen, options) => {
            if (device && provider === undefined)
              throw new UsageError("--device needs the identity provider", "add --provider NAME");
            const { server, code } =
              provider === undefined ? readSignIn(given ?? (await askForCode(screen.io))) : { code: "" };
            const url = serverUrl(server === undefined ? options : { server, ...options }, context.io.env);
            const token = { value: undefined, source: "a code was sent", next: loginAdvice };
            const connection = connectServer(url, token, readCertificates(options, context.io.env));
            return await usingServer(connection, screen, async () => {
              const mayAskName = provider === undefined && name === undefined;
              const signedIn =
                provider === undefined
                  ? await connection.credentials.signIn({ code, label, name: name ?? userInfo().username })
                  : await (device ? signInElsewhere : signInAt)(provider, connection, screen);
              await store(connection, screen, signedIn, { mayAskName });
            });
          }),
    );
}

interface LoginFlags {
  newCode?: boolean;
  name?: string;
  provider?: string;
  device?: boolean;
}

const label = `${userInfo().username}@${hostname()}`;

/** Signs in at an identity provider, which sends the browser back to a port of this machine (RFC 8252). */
async function signInAt(provider: string, { credentials }: ServerConnection, screen: Screen) {
  const server = createServer();
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  try {
    const redirectUri = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
    const { url, flow } = await credentials.beginSignIn({ provider, redirectUri });
    screen.note(`open this address in a browser on this machine, within 10 minutes:\n${terminalLine(url)}`);
    const response = await untilSentBack(server, new URL(url).searchParams.get("state"));
    return await credentials.finishSignIn({ provider, redirectUri, flow, response, label });
  } finally {
    server.close();
    server.closeAllConnections();
  }
}

/** Signs in with a code that the person enters at an identity provider (device flow, RFC 8628). */
async function signInElsewhere(provider: string, { credentials }: ServerConnection, screen: Screen) {
  const { url, flow, userCode, intervalMs, expiresMs } = await credentials.beginSignIn({ provider });
  const [code, address] = [terminalLine(userCode), terminalLine(url)];
  screen.note(`open ${address} in a browser and enter the code ${code}; enter no code that someone sent you`);
  const end = performance.now() + expiresMs;
  for (let pause = intervalMs; performance.now() + pause < end; ) {
    await delay(pause);
    const finished = await credentials.finishSignIn({ provider, flow, label });
    if (!finished.isPending) return finished;
    pause += finished.slowerMs;
  }
  throw new UsageError("no one entered the code in time", "run the command again");
}

/** Returns the query with which the browser comes back; requests of anyone else do not have the state of this flow. */
async function untilSentBack(server: Server, state: string | null): Promise<string> {
  const signal = AbortSignal.timeout(600_000);
  for await (const [{ url = "" }, response] of on(server, "request", { signal })) {
    const back = URL.parse(url, "http://127.0.0.1");
    const isOurs = back?.pathname === "/" && back.searchParams.get("state") === state;
    response.writeHead(isOurs ? 200 : 404, { "content-type": "text/plain", connection: "close" });
    response.end(isOurs ? "You can close this page and go back to the terminal.\n" : "");
    if (isOurs) return back.search.slice(1);
  }
  throw new UsageError("no browser came back within 10 minutes", "run the command again");
}

/** Stores a sign-in, and shows who signed in. */
async function store(
  connection: ServerConnection,
  screen: Screen,
  { token, credential, storeId }: Pick<SignInResponse, "token" | "credential" | "storeId">,
  { mayAskName }: { mayAskName: boolean },
): Promise<void> {
  const { url } = connection;
  const { env } = screen.io;
  saveLogin(url, { storeId, id: credential?.id ?? "", token, expires: credential?.expires ?? 0 }, env);
  const signedIn = connection.as({ value: token, source: "the new sign-in was sent" });
  try {
    const { enforcement, person: first } = await signedIn.tools.getServerInfo({});
    const isNew = credential?.issuer === "" && first?.name === userInfo().username;
    const person = mayAskName && isNew && !screen.json ? await askName(first, signedIn, screen.io) : first;
    const state = { state: enforcementWord(enforcement), reason: enforcement?.reason ?? "" };
    const signIn = { server: url, principal: credential?.id, person: person?.name, enforcement: state };
    screen.result(signIn, () => [
      `signed in at ${url} as ${terminalLine(person?.name ?? "")} (${credential?.id}), stored in ${loginFileOf(env)}`,
    ]);
    screen.note(`for agents that run as ${userInfo().username}, ${enforcementLine(enforcement, screen.paint.err)}`);
  } finally {
    signedIn.close();
  }
}

async function printNewCode({ url, credentials }: ServerConnection, screen: Screen): Promise<void> {
  const response = await credentials.createCode({});
  screen.show(CreateCodeResponseSchema, response, (paint) => [
    `${paint("bold", response.code)}  valid once, for 10 minutes`,
    `  in a browser   ${signInLink(url, response.code)}`,
    `  in a terminal  ${commandLine("toolgate", "login", response.code, ...serverWords(url))}`,
  ]);
}

/** Reads a code, or a link with a code, which also names the server. */
function readSignIn(given: string): { server?: string; code: string } {
  const text = given.trim();
  const [, server, code] = /^(https?:\/\/[^/#]+)\/?#code=([^&]+)$/.exec(text) ?? [];
  if (server !== undefined && code !== undefined) return { server, code: decodeURIComponent(code) };
  if (text !== "" && text.length <= 64) return { code: text };
  throw new UsageError(
    "this is neither a code nor a link with a code",
    "copy the whole link, or only the code behind #code=",
  );
}

async function askForCode(io: CliProcess): Promise<string> {
  if (!hasTerminal(io))
    throw new UsageError("there is no terminal to ask for the code", "name it: toolgate login CODE");
  return await askAtTerminal(io, "code or link › ");
}

/** Asks a new person, whom the code did not name, for the name that records show. */
async function askName(person: Person, { people }: ServerConnection, io: CliProcess): Promise<Person> {
  const name = hasTerminal(io) ? await askAtTerminal(io, `your name, as others see it [${person.name}] › `) : "";
  if (name === "") return person;
  return (await people.renamePerson({ id: person.id, name })).person?.person ?? person;
}

const loginAdvice =
  "get a new code from a signed-in browser (Add a device), from `toolgate login --new-code`, or from the terminal of `toolgate serve` after a restart";

const loginHelp = `
Examples:
  toolgate login http://127.0.0.1:7420/#code=k3x9-7n2p-4qcd-8v1m
  toolgate login --provider corp     at an identity provider, [oidc.corp]; on a machine without a browser with --device
  toolgate login --new-code          for your phone, or another terminal

Programs that run as your user can read the stored sign-in: where an agent does, they can approve. Then sign in as another user.`;

/** Defines `toolgate logout`. */
export function defineLogout(command: Command, context: CliContext): void {
  command.description("Revoke the sign-in of this terminal and remove it").action(() =>
    withServer(context, command, "approver", async (server, screen) => {
      const { env } = context.io;
      const logins = findLogins(server.url, env);
      let ended = logins.at(-1);
      if (ended === undefined) return screen.note(`no sign-in is stored for ${server.url}`);
      for (const login of logins.toReversed()) {
        const own = server.as({ value: login.token, source: "the stored sign-in was sent" });
        try {
          // Until it is revoked this is the only copy of what can revoke it.
          await own.credentials.revokeCredential(login);
          ended = login;
          break;
        } catch (error) {
          // It ended, or is one of another store that was served here: an older one may be of this store.
          if (ConnectError.from(error).code !== Code.Unauthenticated) throw error;
        }
      }
      removeLogin(ended, env);
      screen.note(`signed out at ${server.url}`);
    }),
  );
}
