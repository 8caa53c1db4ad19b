import { needPrograms } from "../programs.ts";
import { installPrograms } from "./mcp-programs.ts";

/** Programs that build the examples in other languages, the sandbox with the clients of registries in it, and a proxy, by Debian's package. */
export default async function setup(): Promise<void> {
  needPrograms([
    ["python3", "python3-venv"],
    ["go", "golang-go"],
    ["cargo", "cargo"],
    ["javac", "default-jdk-headless"],
    ["mvn", "maven"],
    ["curl", "curl"],
    ["bwrap", "bubblewrap"],
    ["caddy", "caddy"],
    ["chromium-headless-shell", "chromium-headless-shell"],
  ]);
  // Two files need these, and run at the same time.
  await installPrograms();
}
