import type { Guard } from "./guard.ts";
import type { LayerRules, Layers } from "./model.ts";

/** Everything that decisions about files depend on, as data that a thread can copy. */
export interface FileRules {
  readonly wide: readonly LayerRules[];
  readonly narrow: readonly LayerRules[];
  readonly guard: Guard;
  readonly home: string;
  /** The files that connectors of agents wrote. */
  readonly connectorFiles: readonly string[];
  readonly gitFiles?: Layers["gitFiles"];
}
