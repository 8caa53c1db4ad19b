import { PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type Address, namesIn, privateHost } from "./address.ts";
import type { CompiledRules } from "./compiled-rules.ts";
import type { Facts } from "./condition.ts";
import type { Layers } from "./model.ts";
import { targetOf } from "./rule-list.ts";

/** Returns which parts of an address a rule that does not deny spells out: the host (or the IP address it resolves to), and the port. */
export function namedParts(
  compiled: CompiledRules,
  address: Address,
  leadsTo: string | undefined,
  { wide }: Layers,
  facts?: Facts,
): { host: boolean; port: boolean } {
  const target = targetOf("webfetch", address.url, undefined, facts);
  const rules = wide.flatMap(({ rules }) => compiled(rules).all(target));
  const naming = rules.filter(({ rule }) => rule.action !== PermissionAction.DENY);
  const isNamed = (host: string) => naming.some(({ rule }) => namesIn(rule.pattern, { ...address, host }).host);
  return {
    host: isNamed(address.host) || (leadsTo !== undefined && isNamed(leadsTo)),
    port: address.port === "" || naming.some(({ rule }) => namesIn(rule.pattern, address).port),
  };
}

/** Returns the reason why the engine denies an address: it is not public, and no rule names it. Undefined if it does not. */
export function refusedAddress(
  compiled: CompiledRules,
  address: Address,
  leadsTo: string | undefined,
  layers: Layers,
  facts?: Facts,
): string | undefined {
  const reason = privateHost(address.host) ?? (leadsTo === undefined ? undefined : privateHost(leadsTo));
  if (reason === undefined || namedParts(compiled, address, leadsTo, layers, facts).host) return undefined;
  return `${reason}, and no rule names it`;
}
