import type { Block } from "./pages.ts";

/** Blocks that do not run here as they stand, each with its reason, or with the test that runs it instead and names its page. */
export const blocksNotRun: readonly Exception[] = [
  { language: "mermaid", count: 2, why: "a drawing" },
  { language: "markdown", why: "a file of a skill, not of Toolgate" },
  { page: "docs/agents/acp.md", language: "json", why: "a setting of opencode" },
  { page: "docs/agents/claude-code.md", count: 4, by: "test/agents/pages.test.ts" },
  { page: "docs/agents/terminal.md", by: "test/agents/connect.test.ts" },
  { page: "docs/clients/ai-sdk.md", count: 2, by: "test/package/ai.test.ts" },
  { page: "docs/clients/claude-agent-sdk.md", by: "test/agents/pages.test.ts" },
  { page: "docs/clients/envoy.md", count: 3, by: "test/readme.test.ts" },
  { page: "docs/clients/opencode.md", language: "ts", by: "test/clients/opencode.test.ts" },
  ...["anthropic", "langchain", "openai-agents", "pydantic-ai"].map((name) => ({
    page: `docs/clients/${name}.md`,
    count: 2,
    by: "test/clients/python-sdk.test.ts",
  })),
  { page: "docs/code.md", language: "sh", why: "needs a language server: test/clients/lsp-servers.test.ts" },
  { page: "docs/kubernetes.md", count: 3, by: "test/package/chart.test.ts" },
  { page: "docs/mcp-servers.md", language: "sh", why: "needs that server: test/clients/upstream.test.ts" },
  { page: "docs/phone.md", language: "caddyfile", by: "test/clients/caddy.test.ts" },
  { page: "docs/phone.md", language: "js", by: "test/reach/channels.test.ts" },
  { page: "docs/worker-conformance.md", why: "needs a worker: test/clients/worker-kit.test.ts" },
];

/** Commands that do not run here, by their beginning. */
export const commandsNotRun: readonly CommandException[] = [
  { begins: /npm ci +#/, why: "the setup of run.ts is this line" },
  {
    begins: /(npm ci && )?npm test|npx vitest|npm run (typecheck|lint|generate)|\.ci\/run/,
    why: "a step of the gate",
  },
  { begins: /npm ci && npm run demo/, why: "two steps of the gate" },
  { begins: /git tag|npx buf build|node test\/faults\/old-stores/, why: "makes a release" },
  { begins: /sudo |systemctl |npm ci && npm pack/, why: "changes the machine: test/package/image.test.ts" },
  { begins: /docker compose/, why: "needs Docker" },
  { begins: /(npx )?toolgate login CODE/, why: "the reader signs in so before the page: reader.ts" },
  { begins: /toolgate token revoke ID/, why: "names a token of yours: test/cli/token.test.ts" },
  { begins: /redis-cli/, why: "needs a Redis with copies: test/faults" },
  { begins: /toolgate .*--data \/var\/lib|toolgate backup|toolgate grants confirm/, why: "test/e2e/backup.test.ts" },
  { begins: /toolgate \S+ .*(--tls-cert|--ca) /, why: "needs a certificate for the name of the machine" },
];

interface CommandException {
  readonly page?: string;
  readonly begins: RegExp;
  readonly why: string;
}

interface Exception {
  readonly page?: string;
  readonly language?: string;
  /** Blocks that it covers: 1 by default, so that a new block of the page is no exception unseen. */
  readonly count?: number;
  /** The beginning of the block. */
  readonly begins?: string;
  readonly why?: string;
  readonly by?: string;
}

export const covers = ({ page, language, begins = "" }: Exception, block: Block): boolean =>
  (page ?? block.page) === block.page &&
  (language ?? block.language) === block.language &&
  block.text.startsWith(begins);

export const isListed = (block: Block): boolean => blocksNotRun.some((exception) => covers(exception, block));

export const isCommandListed = (page: string, command: string): boolean =>
  commandsNotRun.some((exception) => coversCommand(exception, page, command));

export const coversCommand = (exception: CommandException, page: string, command: string): boolean =>
  (exception.page ?? page) === page && command.search(exception.begins) === 0;
