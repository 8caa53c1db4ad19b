import type { McpProgram } from "../../sources/mcp/program-transport.ts";

/** A started language server. */
export interface ServerProgram extends McpProgram {
  readonly pid: number;
}

/** A language server's command line, and the canonical directories in which it runs. */
export interface ServerStart {
  readonly name: string;
  readonly argv: readonly [string, ...string[]];
  /** Variables that it gets in addition to those of commands. */
  readonly env: Readonly<Record<string, string>>;
  /** The root of the project. */
  readonly root: string;
  readonly workspace: string;
  /** Name of the workspace root. */
  readonly workspaceRoot: string;
  /** Called if rules or files change so that the program reaches what it may not; it has to be started again. */
  onStale(reason: string): void;
}

/** Starts language servers, behind the wall where there is one. */
export interface ServerStarter {
  /** Returns the reason why they would run without the sandbox that is configured; undefined if they do not. */
  missingSandbox(): string | undefined;
  /** True if they run in a sandbox. */
  isConfined(): boolean;
  start(request: ServerStart): Promise<ServerProgram>;
}
