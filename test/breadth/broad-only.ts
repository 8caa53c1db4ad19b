/** Files that only `npm run test:breadth` runs: `npm test` has to stay under five minutes. */
export const broadOnly = [
  // Each of their tests starts a program of an agent or a browser page; other files test the parts in `npm test`.
  "test/console/accessibility.test.ts",
  "test/e2e/claude-runner.test.ts",
  "test/e2e/enforced-agent.test.ts",
  "test/runners/acp.test.ts",
  "test/runners/acp-limits.test.ts",
  // Debian's searx takes seconds of CPU to start.
  "test/tools/searx.test.ts",
];
