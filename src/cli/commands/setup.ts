import { execFile, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import {
  chownSync,
  existsSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { hostname, type NetworkInterfaceInfo, networkInterfaces, userInfo } from "node:os";
import { resolve } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { promisify } from "node:util";
import { type Command, Option } from "commander";
import { renderUnicodeCompact } from "uqr";
import { saveLogin } from "../../client/stored-logins.ts";
import { locateProgram } from "../../core/locate-program.ts";
import { type GlobalOptions, withScreen } from "../command.ts";
import { findAgentUser } from "../connect/agent-user.ts";
import { agentKinds, readRecord } from "../connect/record.ts";
import { connectServer, findServerToken, type ServerConnection, serverWords } from "../connection/connection.ts";
import { readCertificates, serverUrl } from "../connection/server-address.ts";
import type { CliContext, CliProcess, ServeFlags } from "../context.ts";
import { CommandError, exitCodes, UsageError } from "../failure/command-error.ts";
import { commandFailure, errorInfoOf } from "../failure/failure.ts";
import { askAtTerminal, confirmAtTerminal } from "../terminal/confirm.ts";
import { hasTerminal } from "../terminal/prompt.ts";
import type { Screen } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { signInLink } from "../view/words.ts";
import { defaultConfigFile, presets, writeConfiguration } from "./init.ts";

interface SetupFlags extends GlobalOptions {
  address?: string;
  name?: string;
  preset?: (typeof presets)[number];
  agent?: string;
  config?: string;
  data?: string;
  listen?: string;
  workspace?: string;
  tlsCert?: string;
  tlsKey?: string;
  yes?: boolean;
  wait: boolean;
}

/** Defines `toolgate setup`. */
export function defineSetup(command: Command, context: CliContext): void {
  command
    .description("From a fresh install to a phone: configuration, sign-in, address, agent, phone and a test notice")
    .option("--address <url>", "the address at which the phone reaches the service (default: it asks at the terminal)")
    .option("--name <name>", "your name (default: that of your user)")
    .addOption(new Option("--preset <name>", "for a new configuration, see `toolgate init`").choices([...presets]))
    .addOption(new Option("--agent <kind>", "connect this agent").choices([...agentKinds, "none"]))
    .option("--config <file>", "the configuration (default: the one that `toolgate serve` reads)")
    .option("--data <dir>", "of a service that is started here: its data directory")
    .option("--listen <address>", "of a service that is started here: where it listens")
    .option("--workspace <dir>", "of a service that is started here: its workspace")
    .option("--tls-cert <file>", "of a service that is started here: its certificate")
    .option("--tls-key <file>", "of a service that is started here: the key of its certificate")
    .option("--yes", "write the configuration without a question")
    .option("--no-wait", "do not wait for the phone")
    .addHelpText("after", setupHelp)
    .action((_: unknown, self: Command) => {
      const flags = self.optsWithGlobals<SetupFlags>();
      return withScreen(context, self, (screen) => setUp(context, screen, flags));
    });
}

const setupHelp = `
Examples:
  toolgate setup
  toolgate setup --address https://box.tail1234.ts.net --agent claude
  toolgate setup --address https://192.168.1.5:7420 --listen 192.168.1.5:7420 --tls-cert box.pem --tls-key box.key

Each step is left out where its result is there already, so the command goes on where it ended. Where no service answers, it
starts one, which serves until Ctrl-C.`;

async function setUp(context: CliContext, screen: Screen, flags: SetupFlags): Promise<void> {
  const { env } = screen.io;
  const file = resolve(flags.config ?? env.TOOLGATE_CONFIG ?? defaultConfigFile(env));
  if (!existsSync(file)) await writeConfiguration(screen.io, file, { preset: flags.preset });
  const address = await configure(context, screen, file, flags);
  const { listen } = flags;
  const server = flags.server ?? (listen && `${flags.tlsCert === undefined ? "http" : "https"}://${listen}`);
  const url = serverUrl({ ...flags, ...(server !== undefined && { server }) }, env);
  const anonymous = connectServer(url, { value: undefined, source: "" }, readCertificates(flags, env));
  if (await isServed(anonymous)) return await finish(context, screen, { ...flags, url, address });
  const served = ["data", "listen", "workspace", "tlsCert", "tlsKey"] as const;
  const given = served.flatMap((name) => (flags[name] === undefined ? [] : [[name, flags[name]]]));
  const serveFlags: ServeFlags = { ...Object.fromEntries(given), config: file };
  let ended: Promise<void> = Promise.resolve();
  await (await context.loadService()).serveUntilStopped(serveFlags, (started) => {
    screen.note(`the service runs here, at ${started.url}, until Ctrl-C; later start it with \`toolgate serve\``);
    const code = () => started.createSignInCode();
    // An address of all interfaces is none to connect to.
    const here = started.url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:");
    ended = finish(context, screen, { ...flags, url: here, address, code }).catch((error: unknown) => {
      screen.fail(commandFailure(error));
    });
  });
  await ended;
}

/** Returns true if a service answers, and closes the connection; a refusal is an answer unless it has to accept the token. */
async function isServed(server: ServerConnection, mustAccept = false): Promise<boolean> {
  try {
    await server.tools.getServerInfo({});
    return true;
  } catch (error) {
    return !mustAccept && errorInfoOf(error) !== undefined;
  } finally {
    server.close();
  }
}

/** Writes what the configuration needs for a phone; returns the address. */
async function configure(context: CliContext, screen: Screen, file: string, flags: SetupFlags): Promise<string> {
  const found = readPhoneSettings(file);
  const given = flags.address === undefined ? undefined : phoneAddress(flags.address);
  if (found.address !== undefined && given !== undefined && given !== new URL(found.address).origin)
    throw new UsageError(
      `${file} names another address, ${found.address}`,
      "change public_url there, or leave out --address",
    );
  const address = found.address ?? given ?? (await chooseAddress(screen.io, flags));
  const missing = missingSettings({ ...found, address: found.address }, phoneAddress(address));
  const lines = [...missing.top, ...missing.end];
  if (lines.length === 0) return phoneAddress(address);
  for (const line of lines) screen.note(`+ ${line}`);
  if (!flags.yes && !(await confirmAtTerminal(screen.io, `write this into ${file}?`)))
    throw new CommandError("the configuration was not changed", "run the command again", exitCodes.cancelled);
  await addSettings(context, file, missing);
  if (missing.end.length > 0 && found.hasNotify)
    screen.alert(`${file} has [[notify]] already: add "phone" to the channels of those that the phone is to get`);
  return phoneAddress(address);
}

async function chooseAddress(io: CliProcess, flags: SetupFlags): Promise<string> {
  const port = new URL(serverUrl(flags, io.env)).port || "7420";
  const found = await findAddresses(io.env, port);
  if (!hasTerminal(io)) {
    const example = found[0]?.url ?? "https://tools.example";
    throw new UsageError("no address is named at which the phone reaches the service", `add --address ${example}`);
  }
  const lines = found.map(({ url, needs }, index) => `  ${index + 1}  ${url}  needs ${needs}`);
  const question = ["At which address does the phone reach the service?", ...lines, "Number, or another address › "];
  const answer = await askAtTerminal(io, question.map(terminalLine).join("\n"));
  return found[Number(answer) - 1]?.url ?? answer;
}

interface Place extends SetupFlags {
  url: string;
  address: string;
  /** Creates a code of a service that runs here. */
  code?: () => string | undefined;
}

/** The steps with a service: sign-in, agent, address, phone. */
async function finish(context: CliContext, screen: Screen, place: Place): Promise<void> {
  const server = await signIn(screen, place);
  try {
    const { pushKey } = await server.channels.listChannels({});
    if (pushKey.length === 0)
      throw new CommandError(
        "the service that runs has no channel for pushes yet: it read its configuration before",
        "restart it, then run `toolgate setup` again",
        exitCodes.failed,
      );
    await connectAgent(context, screen, place);
    const why = await whyUnreached(place.address);
    if (why !== undefined)
      screen.alert(
        `${place.address} does not lead here yet: ${why}. See docs/phone.md; the code below works once it does`,
      );
    if (isPlain(place.address))
      screen.alert(`${place.address} has no TLS: its page can approve, but browsers do not let it notify`);
    await showPhone(screen, server, place);
  } finally {
    server.close();
  }
}

/** Signs this terminal in, unless it is. */
async function signIn(screen: Screen, { url, name, code, ...flags }: Place): Promise<ServerConnection> {
  const { env } = screen.io;
  const certificates = readCertificates(flags, env);
  const known = findServerToken("approver", { ...flags, server: url }, env);
  if (known.value !== undefined && (await isServed(connectServer(url, known, certificates), true)))
    return connectServer(url, known, certificates);
  const made = code?.();
  if (made === undefined)
    throw new CommandError(
      "you are not signed in at the service that runs",
      `run \`${["toolgate", "login", ...serverWords(url)].join(" ")}\` with the code that it printed at its start, then \`toolgate setup\` again`,
      exitCodes.unreachable,
    );
  const { username } = userInfo();
  const open = connectServer(url, { value: undefined, source: "a code was sent" }, certificates);
  try {
    const label = `${username}@${hostname()}`;
    const { token, credential, storeId } = await open.credentials.signIn({ code: made, label, name: name ?? username });
    saveLogin(url, { storeId, id: credential?.id ?? "", token, expires: credential?.expires ?? 0 }, env);
    screen.note(`signed in as ${terminalLine(name ?? username)}`);
    return open.as({ value: token, source: "the new sign-in was sent" });
  } finally {
    open.close();
  }
}

/** Connects the agent that is named, or the only one of this machine if the person agrees. */
async function connectAgent({ program }: CliContext, screen: Screen, { agent, url }: Place): Promise<void> {
  const user = findAgentUser(userInfo().username, screen.io);
  const isConnected = (kind: (typeof agentKinds)[number]) => readRecord(kind, user) !== undefined;
  if (agent === "none" || agentKinds.some((kind) => isConnected(kind) && (agent ?? kind) === kind)) return;
  const found = agentKinds.filter((kind) => locateProgram(kind, user.env.PATH) !== undefined);
  const kind = agent ?? found[0];
  if (kind === undefined || (agent === undefined && !hasTerminal(screen.io))) {
    screen.note(`no agent is connected: \`toolgate connect ${agentKinds.join("|")}\``);
    return;
  }
  if (agent === undefined && !(await confirmAtTerminal(screen.io, `connect ${kind}?`))) return;
  const [command = "", ...args] = [...program, "connect", kind, "--yes", ...serverWords(url)];
  // Under --json, stdout is for the one object of this command.
  const child = spawn(command, args, { env: screen.io.env, stdio: ["ignore", screen.json ? 2 : "inherit", "inherit"] });
  const exitCode = await new Promise((done) => child.once("error", done).once("close", done));
  if (exitCode !== exitCodes.ok) screen.alert(`${kind} is not connected yet: run \`toolgate connect ${kind}\``);
}

/** Shows the link that signs the phone in, and waits until it has, and until a push was accepted. */
async function showPhone(screen: Screen, server: ServerConnection, { address, wait }: Place): Promise<void> {
  const { code } = await server.credentials.createCode({});
  const link = signInLink(address, code);
  if (screen.json) {
    screen.write(`${JSON.stringify({ server: server.url, address, link })}\n`);
    return;
  }
  screen.write(`${qrLines(link, screen).join("\n")}\n${link}\n`);
  screen.note(
    "scan this with the phone, within 10 minutes; it signs in once. On an iPhone: Share, then Add to Home Screen",
  );
  screen.note("then press You and Notify me on the phone");
  if (!wait || !hasTerminal(screen.io)) return;
  const began = Date.now();
  while (
    (await server.channels.listChannels({})).channels.every(
      ({ kind, lastAccepted }) => kind !== "push" || lastAccepted < began,
    )
  )
    await delay(1_000);
  screen.note("a push reached the phone: setup is complete");
}

/** Draws a code in black on white, whatever the colours of the terminal are. */
function qrLines(link: string, { paint }: Screen): string[] {
  return renderUnicodeCompact(link, { border: 2 })
    .split("\n")
    .map((line) => paint.out(["black", "bgWhiteBright"], line));
}

/** Settings that a phone needs: the address, a channel of kind `push`, and requests that go to it. */
interface PhoneSettings {
  /** The address that is set; undefined if none is. */
  readonly address: string | undefined;
  readonly hasPush: boolean;
  readonly hasNotify: boolean;
}

/** Reads the settings of the phone from the text of a configuration; the service checks the whole file. */
function readPhoneSettings(file: string): PhoneSettings {
  const text = readFileSync(file, "utf8");
  // Keys at the top come before the first table.
  const [top = ""] = text.split(/^\s*\[/m, 1);
  const [, address] = /^\s*public_url\s*=\s*["']([^"']+)["']/m.exec(top) ?? [];
  const hasNotify = /^\s*(?:\[\[\s*notify\s*\]\]|notify\s*=)/m.test(text);
  return { address, hasPush: /^\s*kind\s*=\s*["']push["']/m.test(text), hasNotify };
}

/** Returns the lines that are missing in a configuration: those for its top, and those for its end. */
function missingSettings({ address, hasPush, hasNotify }: PhoneSettings, wanted: string) {
  // An entry after one that matches all requests would decide nothing.
  const notify = hasNotify ? [] : ["", "[[notify]]", 'channels = ["phone"]'];
  return {
    top: address === undefined ? [`public_url = ${JSON.stringify(wanted)}`] : [],
    end: hasPush ? [] : ["[channel.phone]", 'kind = "push"', ...notify],
  };
}

/** Adds lines to a configuration, whole or, where a service would refuse it with them, not at all. */
async function addSettings(
  { loadService }: CliContext,
  file: string,
  { top, end }: ReturnType<typeof missingSettings>,
): Promise<void> {
  const before = top.map((line) => `${line}\n`).join("");
  const after = end.length === 0 ? "" : `\n${end.join("\n")}\n`;
  const path = realpathSync(file);
  const next = `${path}.${randomBytes(4).toString("hex")}.new`;
  const { mode, uid, gid } = statSync(path);
  try {
    const text = `${before}${readFileSync(path, "utf8")}${after}`;
    writeFileSync(next, text, { mode: mode & 0o777, flag: "wx", flush: true });
    chownSync(next, uid, gid);
    const { findings } = await (await loadService()).checkConfiguration(next);
    const refused = findings.find(({ severity }) => severity === "error");
    if (refused !== undefined) throw new Error(refused.message);
    renameSync(next, path);
  } catch (cause) {
    rmSync(next, { force: true });
    const why = cause instanceof Error ? cause.message : String(cause);
    const since =
      cause instanceof Error && "syscall" in cause ? "" : ", since a service would refuse it with these lines";
    throw new CommandError(
      `${path} was not changed${since}: ${why.replaceAll(next, path)}`,
      "correct it, or add the lines yourself, then run the command again",
      exitCodes.failed,
      { cause },
    );
  }
}

/** An address at which a phone may reach the service. */
interface PhoneAddress {
  readonly url: string;
  /** The condition under which it works, as text for a person. */
  readonly needs: string;
}

/** Returns the origin of an address for phones; refuses one by which no other device can reach this machine. */
function phoneAddress(written: string): string {
  const text = written.includes("://") ? written : `https://${written}`;
  if (!URL.canParse(text) || !/^https?:$/.test(new URL(text).protocol))
    throw new UsageError(`"${written}" is no address`, "name one such as https://tools.example");
  const { hostname, origin } = new URL(text);
  const host = hostname.replace(/\.$/, "");
  if (/^(?:localhost|.*\.localhost|127\..*|\[::1\])$/.test(host))
    throw new UsageError(
      `${host} means the device that opens it: on a phone that is the phone, not this machine`,
      "name an address that leads from the phone to here: --address https://NAME",
    );
  if (host === "0.0.0.0" || host === "[::]")
    throw new UsageError(
      `${host} stands for all addresses of this machine when a service listens, and is none to open`,
      "name one address: --address https://NAME",
    );
  return origin;
}

/** True for an address without TLS: browsers let its pages approve, and not notify. */
const isPlain = (address: string) => address.startsWith("http:");

/** Finds the addresses of this machine that a phone may reach: its name in a tailnet, and those in the local network. */
export async function findAddresses(env: NodeJS.ProcessEnv, port: string): Promise<PhoneAddress[]> {
  const name = await tailscaleName(env);
  const here = Object.values(networkInterfaces()).flatMap((all: NetworkInterfaceInfo[] = []) => all);
  const local = here.filter(({ internal, family, address }) => !internal && family === "IPv4" && !isTailscale(address));
  return [
    ...(name === "" ? [] : [{ url: `https://${name}`, needs: `\`tailscale serve --bg ${port}\`` }]),
    ...local.map(({ address }) => ({
      url: `https://${address}:${port}`,
      needs: `\`toolgate serve --listen ${address}:${port} --tls-cert FILE --tls-key FILE\``,
    })),
  ];
}

async function tailscaleName(env: NodeJS.ProcessEnv): Promise<string> {
  try {
    const { stdout } = await promisify(execFile)("tailscale", ["status", "--json"], { env, timeout: 5_000 });
    const name: unknown = JSON.parse(stdout).Self?.DNSName;
    return typeof name === "string" && /^[a-z0-9.-]+$/.test(name) ? name.replace(/\.$/, "") : "";
  } catch {
    return "";
  }
}

/** The range that Tailscale gives to machines: its name is the address to use, since its certificate is for that. */
const isTailscale = (address: string) => /^100\.(?:6[4-9]|[7-9]\d|1[01]\d|12[0-7])\./.test(address);

/** Returns why no console answers at an address; undefined if one does. No credential is sent. */
async function whyUnreached(address: string): Promise<string | undefined> {
  try {
    const response = await fetch(`${address}/manifest.webmanifest`, {
      redirect: "error",
      signal: AbortSignal.timeout(10_000),
    });
    if (!response.ok) return `it answered ${response.status}`;
    const { name } = (await response.json()) as { name?: unknown };
    return name === "Toolgate" ? undefined : "another page answers there";
  } catch (error) {
    const { code = "" } = (error instanceof Error && (error.cause as { code?: string } | undefined)) || {};
    return /CERT|SIGNED/.test(code) ? `this machine does not trust its certificate (${code})` : code || "no answer";
  }
}
