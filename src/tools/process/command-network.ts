import type { JsonObject } from "@bufbuild/protobuf";
import { visible } from "../../core/visible.ts";
import type { NetworkAccess } from "../../sandbox/confinement.ts";
import type { PlaceNetwork } from "../../sandbox/network/session-networks.ts";
import type { Traffic } from "../../sandbox/network/target.ts";
import type { ToolContext } from "../../tool/tool.ts";

/** Traffic of a command, and the requests that were refused. */
export interface NetworkUse {
  /** URL → reason of the refusal. */
  readonly refused: Map<string, string>;
  readonly traffic: Traffic[];
  /** Reason why it had no network although the sandbox gives it one. */
  unavailable: string | undefined;
}

/** Creates the network of one command: judged by the rules of its call for `webfetch`, with asks of the running body. */
export function commandNetwork(
  ctx: Pick<ToolContext, "rootSessionId" | "judge" | "ask" | "recordTraffic" | "heldHosts">,
): PlaceNetwork & { use: NetworkUse } {
  const use: NetworkUse = { refused: new Map(), traffic: [], unavailable: undefined };
  const held = ctx.heldHosts;
  return {
    name: ctx.rootSessionId,
    use,
    judge(url, leadsTo) {
      const about = { permission: "webfetch", patterns: [url], ...(leadsTo !== undefined && { leadsTo }) };
      const judged = ctx.judge({ ...about, ...(held && { contained: true }) });
      const isAllowed = judged.action === "ask" && held?.some((allowed) => isSameHost(allowed, url));
      return isAllowed ? { action: "allow", reason: "it was allowed before the start" } : judged;
    },
    ...(!held && {
      ask: (url) =>
        ctx.ask({
          ...{ permission: "webfetch", patterns: [url], always: [`${url}*`], metadata: { url } },
          ...{ refusable: true, whileWorking: true },
        }),
    }),
    refused(url, reason) {
      // A command may be refused without end.
      if (use.refused.size < maxShownHosts)
        use.refused.set(url.slice(0, maxShownLength), reason.slice(0, maxShownLength));
    },
    used(traffic) {
      if (traffic.length === 0) return;
      use.traffic.push(...traffic);
      ctx.recordTraffic(
        traffic.map(({ sentBytes, receivedBytes, ...to }) => ({
          ...to,
          sentBytes: BigInt(sentBytes),
          receivedBytes: BigInt(receivedBytes),
        })),
      );
    },
    unavailable(reason) {
      use.unavailable = reason;
    },
  };
}

/** Checks if two addresses lead to the same host and port; the usual ports of http and https count as one. */
function isSameHost(one: string, other: string): boolean {
  const [first, second] = [one, other].map((url) => new URL(url));
  const portOf = ({ protocol, port }: URL) =>
    /^https?:$/.test(protocol) && /^(80|443)?$/.test(port) ? protocol.replace("s:", ":") : port;
  return (
    first !== undefined &&
    second !== undefined &&
    first.hostname === second.hostname &&
    portOf(first) === portOf(second)
  );
}

const maxShownHosts = 20;
const maxShownLength = 1_000;

/** Describes the use for the result; undefined if there was none. */
export function networkMetadata({ refused, traffic }: NetworkUse): JsonObject | undefined {
  if (refused.size === 0 && traffic.length === 0) return undefined;
  return {
    hosts: traffic.slice(0, maxShownHosts).map((each) => ({ ...each })),
    refused: [...refused]
      .slice(0, maxShownHosts)
      .map(([url, reason]) => ({ url: visible(url), reason: visible(reason) })),
  };
}

/** Errors by which programs report that they reached no host. */
const unreachable =
  /ECONNREFUSED|ENETUNREACH|EAI_AGAIN|ENOTFOUND|Connection refused|Couldn't connect|Network is unreachable|Could not resolve|Name or service not known|Temporary failure in name resolution/;
const maxNoted = 3;

/** Explains a failure that comes from the network of the sandbox, with the next step. Undefined if none is known. */
export function explainNetwork(
  { refused, unavailable }: NetworkUse,
  access: NetworkAccess,
  { tail, failed }: { tail: string; failed: boolean },
): string | undefined {
  const reasons = [...refused.values()].slice(0, maxNoted).map(visible);
  if (reasons.length > 0) return `The network refused: ${reasons.join("\n")}`;
  if (!failed || !unreachable.test(tail)) return undefined;
  if (unavailable !== undefined)
    return `The command had no network, since none could be opened: ${visible(unavailable)}. The operator can correct that, or set network = "open" under [sandbox.agent.NAME], which checks no host.`;
  if (access === "none")
    return 'Commands have no network here. The operator can set network = "proxy" under [sandbox], or for one agent under [sandbox.agent.NAME].';
  if (access === "proxy")
    return 'Commands reach hosts only through the proxy that http_proxy and https_proxy name, and no server of this machine that the session did not start. For a program that cannot use a proxy the operator can set network = "open" under [sandbox.agent.NAME].';
  return undefined;
}
