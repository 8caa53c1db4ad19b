import { DamagedRecord } from "../checksum.ts";
import type { Damage } from "../damage.ts";

/** Wraps the functions of a port: one that reads a damaged record refuses with STORE_DAMAGED, and the log names the record. */
export function refusingDamage<Port extends object>(port: Port, damage: Pick<Damage, "refusal">): Port {
  const refuse = (error: unknown) => {
    throw error instanceof DamagedRecord ? damage.refusal(error) : error;
  };
  const wrapped = Object.entries(Object.getOwnPropertyDescriptors(port)).map(([name, property]) => {
    const { value: run } = property;
    if (typeof run !== "function") return [name, property] as const;
    const value = (...args: unknown[]) => {
      const result: unknown = run(...args);
      return result instanceof Promise ? result.catch(refuse) : result;
    };
    return [name, { ...property, value }] as const;
  });
  return Object.defineProperties({}, Object.fromEntries(wrapped)) as Port;
}
