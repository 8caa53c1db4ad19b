import { fork } from "node:child_process";
import type { Server } from "node:net";
import { fileURLToPath } from "node:url";
import { assets } from "../../core/assets.ts";
import { within } from "../../core/within.ts";
import type { LayerShare } from "../layers.ts";
import { type NetworkNamespace, openNamespace } from "./open-namespace.ts";
import { type FromProxy, type HostPort, hostOf, type ToProxy, type Traffic } from "./target.ts";

/** The network of a command that reaches hosts through the proxy. */
export interface PlaceNetwork extends NetworkRules {
  /** Commands with the same name share a network: the ID of a root session, or of an agent's run. */
  name: string;
  /** Addresses of this machine's loopback that are reached without the proxy. */
  forwards?: readonly HostPort[];
  /** Receives what went over the network while the command ran. */
  used(traffic: readonly Traffic[]): void;
  /** Reports the reason why the command has no network. */
  unavailable(reason: string): void;
}

/** An open network. */
interface SessionNetwork {
  readonly id: number;
  readonly proxy: ProxyProcess;
  readonly namespace: NetworkNamespace;
  readonly commands: Set<ConnectedCommand>;
  /** True once a request was judged since the traffic was collected. */
  isUsed: boolean;
  /** Closes it when it has not been used for some time. */
  idle?: NodeJS.Timeout;
  /** Closes its descriptors as soon as no command can be entering. */
  isClosed: boolean;
}

/** Creates the networks of session trees. The proxy and each network are opened when they are first used, and again after they failed. */
export function createSessionNetworks({ holdMs = maxHoldMs, idleMs = maxIdleMs, isRequired = false } = {}) {
  const networks = new Map<string, Promise<SessionNetwork>>();
  const byId = new Map<number, SessionNetwork>();
  let proxy: ProxyProcess | undefined;
  let lastId = 0;
  let problem: string | undefined;

  function currentProxy(): ProxyProcess {
    if (proxy !== undefined) return proxy;
    const started = startProxy(judge, () => {
      if (proxy === started) proxy = undefined;
      for (const [name, opening] of networks)
        void opening.then(
          (network) => network.proxy === started && closeNetwork(name, network),
          () => undefined,
        );
    });
    proxy = started;
    return started;
  }

  async function judge(id: number, url: string, addresses: readonly string[] | undefined) {
    const network = byId.get(id);
    if (network) network.isUsed = true;
    return await judgeRequest([...(network?.commands ?? [])], url, addresses, holdMs);
  }

  async function open(forwards: readonly HostPort[]): Promise<SessionNetwork> {
    lastId += 1;
    const id = lastId;
    const started = currentProxy();
    const namespace = await openNamespace([proxyAddress, ...forwards]);
    try {
      const network = { id, proxy: started, namespace, commands: new Set<ConnectedCommand>() };
      for (const [i, server] of namespace.servers.entries()) await started.open(id, server, forwards[i - 1]);
      const opened = { ...network, isUsed: false, isClosed: false };
      byId.set(id, opened);
      return opened;
    } catch (error) {
      namespace.close();
      throw error;
    } finally {
      // The proxy has them now.
      for (const server of namespace.servers) server.close();
    }
  }

  /** Returns the network of a name. One that could not be opened is tried again by the next command. */
  function networkNamed({ name, forwards = [] }: PlaceNetwork): Promise<SessionNetwork> {
    const known = networks.get(name);
    if (known !== undefined) return known;
    const opening = open(forwards);
    networks.set(name, opening);
    opening.catch(() => networks.get(name) === opening && networks.delete(name));
    return opening;
  }

  function closeNetwork(name: string, network: SessionNetwork): void {
    networks.delete(name);
    byId.delete(network.id);
    clearTimeout(network.idle);
    network.isClosed = true;
    network.proxy.close(network.id);
    if (network.commands.size === 0) network.namespace.close();
  }

  async function leave(name: string, network: SessionNetwork, command: ConnectedCommand, used: PlaceNetwork["used"]) {
    if (network.isUsed) {
      network.isUsed = false;
      used(await network.proxy.collect(network.id));
    }
    network.commands.delete(command);
    if (network.commands.size > 0) return;
    if (network.isClosed) return network.namespace.close();
    network.idle = setTimeout(() => closeNetwork(name, network), idleMs).unref();
  }

  return {
    /**
     * Returns the share that puts a command into its network; without one, or if it cannot be opened, into an empty one. Throws in
     * the second case if each layer is required.
     */
    async share(place: PlaceNetwork | undefined): Promise<LayerShare> {
      if (place === undefined) return emptyNetwork;
      try {
        const network = await networkNamed(place);
        clearTimeout(network.idle);
        const command = { rules: place, asked: new Map() };
        network.commands.add(command);
        problem = undefined;
        return { ...enterShare(network), release: () => leave(place.name, network, command, place.used) };
      } catch (error) {
        problem = messageOf(error);
        if (isRequired) throw new Error(`${required}: ${problem}`, { cause: error });
        place.unavailable(problem);
        return emptyNetwork;
      }
    },
    /** Returns the share that enters a network, without a command by whose rules requests are judged. Throws if it is not open. */
    async open(place: Pick<PlaceNetwork, "name"> | undefined): Promise<LayerShare> {
      if (place === undefined) return emptyNetwork;
      const network = await networks.get(place.name);
      if (network === undefined) throw new Error("the network of the session is not open");
      return enterShare(network);
    },
    /** Returns the reason why the last network could not be opened; undefined if it could. */
    problem: (): string | undefined => problem,
    close(): void {
      for (const [name, opening] of networks)
        void opening.then(
          (network) => closeNetwork(name, network),
          () => undefined,
        );
      proxy?.stop();
    },
  };
}

/** Opens a network and closes it again; returns the reason if that fails. */
export async function probeNetwork(): Promise<string | undefined> {
  try {
    const { servers, close } = await openNamespace([proxyAddress]);
    for (const server of servers) server.close();
    close();
    return undefined;
  } catch (error) {
    return messageOf(error);
  }
}

const messageOf = (error: unknown) => (error instanceof Error ? error.message : String(error));

const required = "its session has no network, and require = true under [sandbox] runs nothing without all layers";

const enterShare = ({ id, namespace }: SessionNetwork): LayerShare => ({
  version: String(id),
  layers: ["network"],
  enter: namespace.enter,
  env: proxyVariables,
});

const emptyNetwork: LayerShare = { layers: ["network"], args: { network: ["--unshare-net"] } };

/** Time without commands after which a network is closed. */
const maxIdleMs = 600_000;

/** The rules by which a command reaches the network. */
export interface NetworkRules {
  /** Evaluates rules for a URL; `leadsTo` is an IP address of its host. */
  judge(url: string, leadsTo?: string): { action: "allow" | "ask" | "deny"; reason: string };
  /** Asks a person if the command may reach a host; throws if it may not. Absent: no one is asked. */
  ask?(url: string): Promise<void>;
  /** Reports a refused request, for the result of the command. */
  refused(url: string, reason: string): void;
}

/** A command in a network, with the hosts about which a person was asked. */
interface ConnectedCommand {
  readonly rules: NetworkRules;
  readonly asked: Map<string, Promise<void>>;
}

/** Maximum time for which a connection waits for a person. */
const maxHoldMs = 60_000;

/**
 * Judges a request of a network; returns the refusal, undefined if it may go on. Which of the commands sent it is unknown, so all
 * of them must be allowed to.
 */
export async function judgeRequest(
  commands: readonly ConnectedCommand[],
  url: string,
  addresses: readonly string[] | undefined,
  holdMs: number,
): Promise<string | undefined> {
  const refusal = await refusalOf(commands, url, addresses, holdMs);
  if (refusal !== undefined) for (const { rules } of commands) rules.refused(url, refusal);
  return refusal;
}

async function refusalOf(
  commands: readonly ConnectedCommand[],
  url: string,
  addresses: readonly string[] | undefined,
  holdMs: number,
): Promise<string | undefined> {
  if (commands.length === 0)
    return `${url} is refused: no command of the session is running, by whose rules it could be judged`;
  if (addresses) {
    for (const { rules } of commands)
      for (const address of addresses) {
        const { action, reason } = rules.judge(url, address);
        if (action === "deny") return `${url} leads to ${address}, which is not allowed: ${reason}`;
      }
    return undefined;
  }
  const judged = commands.map((command) => ({ command, ...command.rules.judge(url) }));
  const denied = judged.find(({ action }) => action === "deny");
  if (denied) return `${url} is not allowed: ${denied.reason}`;
  for (const { command } of judged.filter(({ action }) => action === "ask")) {
    const refusal = await hold(command, url, holdMs);
    if (refusal !== undefined) return refusal;
  }
  return undefined;
}

/** Holds a request while a person is asked about its host, once for each command. */
async function hold({ rules, asked }: ConnectedCommand, url: string, holdMs: number): Promise<string | undefined> {
  const host = hostOf(url);
  if (!rules.ask)
    return `no rule allows ${host}, and no one is asked. Add "${host}*" = "allow" under [permission.webfetch]`;
  const answer = asked.get(host) ?? rules.ask(host);
  asked.set(host, answer);
  const allowed = answer.then(() => undefined);
  try {
    return await within(holdMs, allowed, () => `no one has allowed ${host} within ${holdMs / 1_000} s`);
  } catch (error) {
    return `${host} was refused: ${error instanceof Error ? error.message : String(error)}`;
  }
}

/** Judges a request to the proxy; returns the refusal, undefined if it may go on. */
type JudgeOfNetwork = (
  network: number,
  url: string,
  addresses: readonly string[] | undefined,
) => Promise<string | undefined>;

/** The process that connects commands to hosts. */
interface ProxyProcess {
  readonly pid: number | undefined;
  /** Hands over a listening socket of a network; with `forward` it leads to that address alone. */
  open(network: number, server: Server, forward?: HostPort): Promise<void>;
  close(network: number): void;
  /** Returns the traffic of a network since the last time; empty if the process has ended. */
  collect(network: number): Promise<readonly Traffic[]>;
  stop(): void;
}

/** Starts the process without an environment, so that it holds no secret. `onExit` is called when it has ended. */
function startProxy(judge: JudgeOfNetwork, onExit: () => void): ProxyProcess {
  const child = fork(fileURLToPath(assets.proxyProcess), [], {
    ...{ cwd: "/", env: {}, execArgv: [], serialization: "json" },
    stdio: ["ignore", "ignore", "ignore", "ipc"],
  });
  child.unref();
  child.channel?.unref();
  const opening = new Map<number, () => void>();
  const collecting = new Map<number, (traffic: readonly Traffic[]) => void>();
  let waiting = 0;
  const { promise: exited, resolve: exit } = Promise.withResolvers<void>();
  const send = (message: ToProxy, server?: Server) => {
    if (child.connected) child.send(message, server, () => undefined);
  };
  child.on("message", (message: FromProxy) => {
    switch (message.case) {
      case "opened":
        return opening.get(message.network)?.();
      case "collected":
        return collecting.get(message.network)?.(message.traffic);
      case "judge": {
        const { question, network, url, addresses } = message;
        void judge(network, url, addresses)
          .catch((error: unknown) => `the request could not be judged: ${String(error)}`)
          .then((refusal) => send({ case: "answer", question, ...(refusal !== undefined && { refusal }) }));
      }
    }
  });
  /** Waits for an answer of the process; undefined if it has ended. Only meanwhile it keeps this process alive. */
  async function answerTo<Answer>(begin: (resolve: (answer: Answer) => void) => void): Promise<Answer | undefined> {
    const { promise, resolve } = Promise.withResolvers<Answer>();
    waiting += 1;
    child.channel?.ref();
    begin(resolve);
    const answer = await Promise.race([promise, exited.then(() => undefined)]);
    waiting -= 1;
    if (waiting === 0) child.channel?.unref();
    return answer;
  }

  const end = () => {
    exit();
    onExit();
  };
  child.once("exit", end).once("error", end);
  return {
    pid: child.pid,
    async open(network, server, forward) {
      const isOpen = await answerTo<true>((resolve) => {
        opening.set(network, () => resolve(true));
        send({ case: "open", network, ...(forward && { forward }) }, server);
      });
      opening.delete(network);
      if (!isOpen) throw new Error("the proxy has ended");
    },
    close: (network) => send({ case: "close", network }),
    async collect(network) {
      const traffic = await answerTo<readonly Traffic[]>((resolve) => {
        collecting.set(network, resolve);
        send({ case: "collect", network });
      });
      return traffic ?? [];
    },
    stop: () => child.kill("SIGKILL"),
  };
}

/** Address of the proxy in the network of each session tree. */
const proxyAddress = { host: "127.0.0.1", port: 3128 };

const url = `http://${proxyAddress.host}:${proxyAddress.port}`;
const direct = "localhost,127.0.0.1,::1";

/** Opens a tunnel for ssh, as its ProxyCommand; bash alone, since not every machine has a program for that. */
const sshTunnel = `
exec 3<>/dev/tcp/${proxyAddress.host}/${proxyAddress.port} || exit 1
printf 'CONNECT %s:%s HTTP/1.1\\r\\nHost: %s:%s\\r\\n\\r\\n' "$1" "$2" "$1" "$2" >&3
IFS= read -r status <&3
while IFS= read -r line <&3 && [[ $line != $'\\r' ]]; do :; done
if [[ $status != "HTTP/1.1 200"* ]]; then
  cat <&3 >&2
  exit 1
fi
cat <&3 &
exec cat >&3
`;

/** Variables by which programs find the proxy. They only help: the network has no other way out. */
export const proxyVariables: Readonly<Record<string, string>> = {
  ...Object.fromEntries(
    ["http_proxy", "https_proxy", "all_proxy"].flatMap((name) => [
      [name, url],
      [name.toUpperCase(), url],
    ]),
  ),
  no_proxy: direct,
  NO_PROXY: direct,
  NODE_USE_ENV_PROXY: "1",
  TOOLGATE_SSH_TUNNEL: sshTunnel,
  GIT_SSH_COMMAND: `ssh -o 'ProxyCommand=bash -c "$TOOLGATE_SSH_TUNNEL" - %h %p'`,
};
