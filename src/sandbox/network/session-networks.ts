import type { LayerShare } from "../layers.ts";
import { type ConnectedCommand, judgeRequest, maxHoldMs, type NetworkRules } from "./judge-request.ts";
import type { Traffic } from "./messages.ts";
import { type NetworkNamespace, openNamespace } from "./open-namespace.ts";
import { type ProxyProcess, startProxy } from "./proxy-client.ts";
import { proxyAddress, proxyVariables } from "./proxy-variables.ts";
import type { HostPort } from "./target.ts";

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

/** Networks of session trees. */
export interface SessionNetworks {
  /**
   * Returns the share that puts a command into its network; without one, or if it cannot be opened, into an empty one. Throws in
   * the second case if each layer is required.
   */
  share(network: PlaceNetwork | undefined): Promise<LayerShare>;
  /** Returns the reason why the last network could not be opened; undefined if it could. */
  problem(): string | undefined;
  close(): void;
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

/** Creates the networks. The proxy and each network are opened when they are first used, and again after they failed. */
export function createSessionNetworks({
  holdMs = maxHoldMs,
  idleMs = maxIdleMs,
  isRequired = false,
} = {}): SessionNetworks {
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
    async share(place) {
      if (place === undefined) return emptyNetwork;
      try {
        const network = await networkNamed(place);
        clearTimeout(network.idle);
        const command = { rules: place, asked: new Map() };
        network.commands.add(command);
        problem = undefined;
        return {
          layers: ["network"],
          enter: network.namespace.enter,
          env: proxyVariables,
          release: () => leave(place.name, network, command, place.used),
        };
      } catch (error) {
        problem = messageOf(error);
        if (isRequired) throw new Error(`${required}: ${problem}`, { cause: error });
        place.unavailable(problem);
        return emptyNetwork;
      }
    },
    problem: () => problem,
    close() {
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

const emptyNetwork: LayerShare = { layers: ["network"], args: { network: ["--unshare-net"] } };

/** Time without commands after which a network is closed. */
const maxIdleMs = 600_000;
