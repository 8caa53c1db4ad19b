import { fromConfig, type Rule } from "./rules.ts";

/** A set of rules that the configuration chooses. */
export interface Preset {
  readonly name: "contained";
  /** The hosts from which commands may install packages by name. */
  readonly registries: readonly string[];
  readonly rules: readonly Rule[];
}

/** Creates the preset by which command lines run without an ask where the sandbox keeps what they do. */
export function containedPreset(registries: readonly string[]): Preset {
  const whole = { action: "allow", when: "contained" } as const;
  const tolerant = { action: "allow", when: "contained && risk.only(['network', 'outside', 'packages'])" } as const;
  const hosts = registries.map((host) => [`https://${host}/*`, whole]);
  // Only what a command line does carries the fact, so tools that edit files or fetch pages still ask.
  const rules = { bash: { "*": tolerant }, edit: { "*": whole }, webfetch: Object.fromEntries(hosts) };
  return { name: "contained", registries, rules: fromConfig(rules, "") };
}
