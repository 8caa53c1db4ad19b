import type { CliProcess, LocalService } from "../../src/cli/context.ts";

/** Stands in for the service: prints what it was started with, and embeds the server at TEST_ENGINE_URL. It trusts workspaces like the real one. */
export function fakeService({ env, stdout, stderr }: CliProcess): () => Promise<LocalService> {
  return async () => ({
    async serveUntilStopped(flags) {
      stdout.write(`${JSON.stringify(flags)}\n`);
    },
    async embedService(flags) {
      stderr.write(`embedded ${JSON.stringify(flags)}\n`);
      return {
        url: env.TEST_ENGINE_URL ?? "",
        tokens: { caller: "caller-token-for-tests", approver: "approver-token-for-tests" },
        async close() {
          stderr.write("engine closed\n");
        },
      };
    },
    formatOfStore: async () => ({ format: 1, isShared: false }),
    repeatBackup: async () => ({ judged: 0, otherwise: [], notJudged: [] }),
    candidateOfFile: (file) => `# rules of ${file}\n`,
    checkConfiguration: async (file = "none") => ({ file, rules: 0, tests: 0, findings: [], notes: [] }),
    openLocalCredentials: () => Promise.reject(new Error("not used")),
    restoreDirectory: () => Promise.reject(new Error("not used")),
    async trustDirectory(directory, flags) {
      const { trustDirectory } = await import("../../src/compose/local-service.ts");
      return await trustDirectory(directory, flags);
    },
  });
}
