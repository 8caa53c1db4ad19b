import type { Tool } from "./tool.ts";

/** Tools of agents that run them themselves, by their names here: `KIND:Tool`. Their bodies are never entered here. */
export interface ForeignTools {
  /** Returns the tool of a name. A tool without a mapping asks for the permission of its name. */
  tool(name: string, place?: ForeignPlace): Tool;
  /** Reports whether a name has a mapping, so that it is one of a fixed set. */
  isMapped(name: string): boolean;
}

/** Place where an agent runs a tool. */
export interface ForeignPlace {
  /** Its working directory. */
  directory: string;
  /** True if the service sees the same files. */
  isDiskShared: boolean;
}

/** Returns the name of a foreign tool. */
export const foreignName = ({ kind, tool }: { kind: string; tool: string }) => `${kind}:${tool}`;
