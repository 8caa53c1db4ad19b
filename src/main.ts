import packageJson from "../package.json" with { type: "json" };
import { runCli } from "./cli/cli.ts";

process.stdout.on("error", (error: NodeJS.ErrnoException) => {
  // `toolgate … | head`: the reader of our output has read enough.
  if (error.code === "EPIPE") process.exit();
  throw error;
});

process.exitCode = await runCli(process.argv.slice(2), {
  io: process,
  version: packageJson.version,
  program: [process.execPath, import.meta.filename],
  loadService: () => import("./compose/local-service.ts"),
});
