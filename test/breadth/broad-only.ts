/** Files that only `npm run test:breadth` runs: `npm test` has to stay under five minutes. */
export const broadOnly = [
  // Each of their tests starts a program of an agent or a browser page; other files test the parts in `npm test`.
  "test/console/accessibility.test.ts",
  "test/console/careful.test.ts",
  "test/console/hidden.test.ts",
  "test/console/links.test.ts",
  "test/console/many.test.ts",
  "test/console/phone.test.ts",
  "test/console/policy.test.ts",
  "test/console/question.test.ts",
  "test/console/sources.test.ts",
  "test/console/tabs.test.ts",
  "test/console/tools.test.ts",
  "test/console/tour.test.ts",
  "test/console/whole-change.test.ts",
  "test/console/windows.test.ts",
  "test/console/workers.test.ts",
  "test/e2e/enforced-agent.test.ts",
  "test/e2e/agent-hooks.test.ts",
  "test/e2e/hook-environment.test.ts",
  "test/e2e/leftovers.test.ts",
  "test/e2e/question-clients.test.ts",
  "test/mcp/resilience.test.ts",
  "test/runners/acp.test.ts",
  "test/runners/acp-limits.test.ts",
  // Each round restarts replicas of older or other definitions, or moves slots of a cluster; the store contract and test/e2e/replicas run always.
  "test/e2e/drift.test.ts",
  "test/e2e/changed-tools.test.ts",
  "test/store/redis-address.test.ts",
  "test/store/redis-cluster.test.ts",
  "test/store/redis-missing-copies.test.ts",
  // Loses the answer of each script.
  "test/store/redis-scripts.test.ts",
  // Stops and freezes copies of Redis.
  "test/store/redis-copies.test.ts",
  // Random runs of the engine beside a model.
  "test/model/model.test.ts",
  // Hundreds of hostile command lines, and commands that start while files move; test/sandbox/enforcement runs always.
  "test/sandbox/attempts.test.ts",
  "test/sandbox/races.test.ts",
  // Runs random command lines in real bash for a minute.
  "test/sandbox/file-fuzz.test.ts",
  // Each test starts services, or stops and kills them; their parts are tested one by one in `npm test`.
  "test/call/remote.test.ts",
  "test/call/remote-random.test.ts",
  "test/cli/inbox.test.ts",
  "test/cli/terminal.test.ts",
  "test/call/stream-tools.test.ts",
  "test/e2e/clients.test.ts",
  "test/e2e/command-line.test.ts",
  "test/e2e/connect.test.ts",
  "test/e2e/credentials.test.ts",
  "test/e2e/custom-tools.test.ts",
  "test/e2e/durable-batch.test.ts",
  "test/e2e/failed-start.test.ts",
  "test/e2e/hook-failures.test.ts",
  "test/e2e/lsp.test.ts",
  "test/e2e/many-streams.test.ts",
  "test/e2e/observability.test.ts",
  "test/e2e/opencode.test.ts",
  "test/e2e/other-user.test.ts",
  "test/e2e/shutdown.test.ts",
  "test/e2e/tool-processes.test.ts",
  "test/e2e/doom-loop.test.ts",
  "test/e2e/kill-loop.test.ts",
  "test/e2e/reload.test.ts",
  "test/e2e/upstream.test.ts",
  "test/e2e/upstream-headers.test.ts",
  "test/e2e/upstream-pins.test.ts",
  "test/edge/streams.test.ts",
  "test/mcp/recorded.test.ts",
  "test/mcp/results.test.ts",
  "test/runners/background.test.ts",
  "test/runners/task.test.ts",
  "test/sandbox/limits.test.ts",
  "test/sandbox/moves.test.ts",
  "test/telemetry/calls.test.ts",
  "test/tools/language-servers.test.ts",
  "test/bodies/worker.test.ts",
  "test/tools/supervisor.test.ts",
  // Installs Bun, 100 MB, into .cache; the same tests run always under Node.
  "test/e2e/bun-tools.test.ts",
  "test/bodies/processes/bun.test.ts",
  "test/seeds/bun.test.ts",
  "test/seeds/opencode-pages.test.ts",
  // Workers over the wire; test/call/remote.test.ts has the engine's part.
  "test/bodies/workers/work.test.ts",
  "test/bodies/workers/border.test.ts",
  "test/bodies/workers/directory.test.ts",
  "test/bodies/workers/names.test.ts",
  "test/bodies/workers/replicas.test.ts",
  "test/bodies/workers/restart.test.ts",
  "test/bodies/workers/routing.test.ts",
  "test/worker-kit/controls.test.ts",
  // Speaks to a service that the test plays; test/clients and test/package run the SDK against the real one.
  "test/bodies/sdk/serve.test.ts",
  "test/bodies/processes/foreign-files.test.ts",
  "test/bodies/processes/foreign-plugins.test.ts",
  // Kills services; test/reach/service.test.ts does so with a webhook.
  "test/reach/push.test.ts",
  "test/reach/slack.test.ts",
  // Installs an identity provider into .cache; test/people/oidc.test.ts plays one.
  "test/people/oidc-replicas.test.ts",
  // Debian's searx takes seconds of CPU to start.
  "test/tools/searx.test.ts",
];

/** Files that only `TOOLGATE_LONG=1 npm run test:breadth` runs: `.ci/run` has to stay under 25 minutes. */
export const longOnly = [
  // npm run test:agents runs the real Claude Code.
  "test/e2e/claude-runner.test.ts",
  "test/console/scale.test.ts",
];
