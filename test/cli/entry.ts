import { runCli } from "../../src/cli/cli.ts";
import { fakeService } from "./fake-service.ts";

process.exitCode = await runCli(process.argv.slice(2), {
  io: process,
  version: "0.0.0",
  program: [process.execPath, import.meta.filename],
  loadService: fakeService(process),
});
