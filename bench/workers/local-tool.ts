/** The service as users start it, and in its process the tool `repeat`: like a worker's tool it is judged, and recorded before it runs. */
import { once } from "node:events";
import { join } from "node:path";
import { parseArgs } from "node:util";
import * as z from "zod";
import { createLogger, loadConfig, readEnvironment, startServer } from "../../src/index.ts";
import { defineTool } from "../../src/tool/define-tool.ts";

const repeat = defineTool({
  name: "repeat",
  version: "1",
  description: "Returns the text.",
  input: z.object({ text: z.string() }),
  permissions: ["repeat"],
  plan: ({ text }) => ({ title: "repeat", asks: [{ permission: "repeat", patterns: [text] }] }),
  execute: ({ text }) => ({ output: text }),
});

const text = { type: "string" } as const;
const { values: flags } = parseArgs({
  allowPositionals: true,
  options: { listen: text, data: text, workspace: text, config: text },
});
const config = loadConfig(flags, readEnvironment());
const log = createLogger({ level: config.logLevel, file: join(config.dataDirectory, "log", "toolgate.log") });
const server = await startServer(config, log, { tools: { repeat } });
process.stdout.write(`${server.url}\n`);
await once(process, "SIGTERM");
await server.close();
process.exit();
