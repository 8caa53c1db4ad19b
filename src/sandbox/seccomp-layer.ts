import { closeSync } from "node:fs";
import type { LayerShare } from "./layers.ts";
import { assembleFilter, filterArchitecture, type SystemCallSwitches } from "./seccomp.ts";
import { openUnnamed, reopenUnnamed } from "./unnamed-file.ts";

/** The filters of system calls, each assembled when it is first used. */
export interface SeccompFilters {
  /** Returns the share that filters the system calls of one command; empty on an architecture without a filter. */
  share(switches: SystemCallSwitches): LayerShare;
  close(): void;
}

/** Creates the filters. Each is a file without a name, opened again for each command, since bubblewrap reads to its end. */
export function createSeccompFilters(): SeccompFilters {
  const architecture = filterArchitecture();
  const files = new Map<string, number>();
  return {
    share({ unixSockets, ptrace }) {
      if (architecture === undefined) return {};
      const key = `${unixSockets} ${ptrace}`;
      const file = files.get(key) ?? openUnnamed(assembleFilter(architecture, { unixSockets, ptrace }));
      files.set(key, file);
      const descriptor = reopenUnnamed(file);
      return {
        layers: ["system_calls"],
        files: [{ descriptor, option: "--seccomp", layer: "seccomp" }],
        release: async () => closeSync(descriptor),
      };
    },
    close() {
      for (const file of files.values()) closeSync(file);
      files.clear();
    },
  };
}
