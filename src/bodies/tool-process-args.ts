/** Arguments of the runtime before the program of a tool process. */
export function toolProcessArgs(runtime: "node" | "bun"): string[] {
  // Bun would run code and read settings that a workspace brings in bunfig.toml and .env, and install missing packages.
  return runtime === "bun" ? ["--config=/dev/null", "--no-env-file", "--no-install"] : [];
}
