import type { CliProcess, LocalService } from "../../src/cli/context.ts";

/** Stands in for the service: prints what it was started with, and embeds the server at TEST_ENGINE_URL. It trusts workspaces like the real one. */
export function fakeService({ env, stdout, stderr }: CliProcess): () => Promise<LocalService> {
  return async () => ({
    async serve(flags) {
      stdout.write(`${JSON.stringify(flags)}\n`);
    },
    async embed(flags) {
      stderr.write(`embedded ${JSON.stringify(flags)}\n`);
      return {
        url: env.TEST_ENGINE_URL ?? "",
        tokens: { caller: "caller-token-for-tests", approver: "approver-token-for-tests" },
        async close() {
          stderr.write("engine closed\n");
        },
      };
    },
    formatOf: async () => ({ format: 1, isShared: false }),
    repeatDecisions: async () => ({ judged: 0, otherwise: [], notJudged: [] }),
    candidateOf: (file) => `# rules of ${file}\n`,
    checkConfig: async (file = "none") => ({ file, rules: 0, tests: 0, findings: [], notes: [] }),
    openCredentials: () => Promise.reject(new Error("not used")),
    restore: () => Promise.reject(new Error("not used")),
    async trust(directory, flags) {
      const { trustDirectory } = await import("../../src/compose/local-service.ts");
      return await trustDirectory(directory, flags);
    },
  });
}
