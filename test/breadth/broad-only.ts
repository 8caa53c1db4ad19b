/** Files that only `npm run test:breadth` runs: `npm test` has to stay under five minutes. */
export const broadOnly = [
  // Each of their tests starts a program of an agent or a browser page; other files test the parts in `npm test`.
  "test/console/accessibility.test.ts",
  "test/console/careful.test.ts",
  "test/console/links.test.ts",
  "test/console/policy.test.ts",
  "test/console/question.test.ts",
  "test/console/scale.test.ts",
  "test/console/tabs.test.ts",
  "test/console/tools.test.ts",
  "test/console/tour.test.ts",
  "test/console/whole-change.test.ts",
  "test/console/windows.test.ts",
  "test/e2e/claude-runner.test.ts",
  "test/e2e/enforced-agent.test.ts",
  "test/e2e/hook-environment.test.ts",
  "test/e2e/question-clients.test.ts",
  "test/mcp/resilience.test.ts",
  "test/runners/acp.test.ts",
  "test/runners/acp-limits.test.ts",
  // Each round restarts replicas of older or other definitions, or moves slots of a cluster; the store contract and test/e2e/replicas run always.
  "test/e2e/drift.test.ts",
  "test/store/redis-address.test.ts",
  "test/store/redis-cluster.test.ts",
  // Debian's searx takes seconds of CPU to start.
  "test/tools/searx.test.ts",
];
