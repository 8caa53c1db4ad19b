import { join } from "node:path";
import type { Runtime } from "./driver.ts";
import { installPackages } from "./installed.ts";

/** Installs the Bun of the lock file. */
export function installBun(): Runtime {
  return { name: "bun", program: join(installPackages("bun", "Bun, about 100 MB"), "@oven/bun-linux-x64/bin/bun") };
}
