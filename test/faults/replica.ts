import { join } from "node:path";
import { parseArgs } from "node:util";
import { startServer } from "../../src/compose/server.ts";
import { openStore } from "../../src/compose/store.ts";
import { loadConfig, readEnvironment } from "../../src/config/config.ts";
import { createLogger } from "../../src/core/logger.ts";
import { breakStore, openWithoutOperationIds } from "./broken-store.ts";

// Starts a replica as `toolgate serve` does, with a store that breaks as TOOLGATE_BREAK names.
const { values } = parseArgs({
  allowPositionals: true,
  options: {
    listen: { type: "string" },
    workspace: { type: "string" },
    data: { type: "string" },
    config: { type: "string" },
  },
});
const config = loadConfig(values, readEnvironment());
const log = createLogger({ level: "error", file: join(config.dataDirectory, "log", "toolgate.log") });
const how = process.env.TOOLGATE_BREAK ?? "";
const open = how === "no operation ids" ? openWithoutOperationIds : openStore;
const server = await startServer(config, log, { open: async (...options) => breakStore(await open(...options), how) });
process.stderr.write(`A replica is at ${server.url}\n`);
process.once("SIGTERM", async () => {
  await server.close();
  process.exit(0);
});
