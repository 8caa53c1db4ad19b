import { cli } from "../../src/cli/cli.ts";

const url = process.env.TEST_ENGINE_URL ?? "";

await cli({
  trust: () => Promise.reject(new Error("not used")),
  version: "0.0.0",
  checkConfig: async (file = "none") => ({ file, rules: 0, tests: 0, findings: [] }),
  serve: async (flags) => console.log(JSON.stringify(flags)),
  embed: async (flags) => {
    console.error(`embedded ${JSON.stringify(flags)}`);
    return {
      url,
      tokens: { caller: "caller-token", approver: "approver-token" },
      close: async () => console.error("engine closed"),
    };
  },
}).parseAsync();
