/**
 * The service as users start it, and in its process two tools: `repeat`, which like a worker's tool is judged, and recorded before it
 * runs, and `nap`, which runs until it is cancelled.
 */
import { once } from "node:events";
import { appendFileSync } from "node:fs";
import { homedir } from "node:os";
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

const nap = defineTool({
  name: "nap",
  version: "1",
  description: "Runs until it is cancelled, and writes when it was.",
  input: z.object({}),
  permissions: ["nap"],
  plan: () => ({ title: "nap", asks: [{ permission: "nap", patterns: ["nap"] }] }),
  async execute(_input, { output, signal }) {
    await output("entered");
    if (!signal.aborted) await once(signal, "abort");
    appendFileSync(join(homedir(), "stopped"), `${Date.now()}\n`);
    return { output: "" };
  },
});

const text = { type: "string" } as const;
const { values: flags } = parseArgs({
  allowPositionals: true,
  options: { listen: text, data: text, workspace: text, config: text },
});
const config = loadConfig(flags, readEnvironment());
const log = createLogger({ level: config.logLevel, file: join(config.dataDirectory, "log", "toolgate.log") });
const server = await startServer(config, log, { tools: { repeat, nap } });
process.stdout.write(`${server.url}\n`);
await once(process, "SIGTERM");
await server.close();
process.exit();
