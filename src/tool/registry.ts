import { bindTool, boundTool } from "./define-tool.ts";
import type { DefinedTool, Tool } from "./tool.ts";

/** Tools to register: each serves under its key. */
export type ToolsByName = Readonly<Record<string, DefinedTool>>;

/** Returns tools by the names that they declare. */
export function byName(tools: readonly DefinedTool[]): ToolsByName {
  return Object.fromEntries(tools.map((tool) => [boundTool(tool).name, tool]));
}

/** Tools by name: those of the whole process, and those of one workspace, which take precedence there. */
export interface Registry {
  /**
   * Adds tools by name, for one workspace root or for all, and returns the function that removes exactly this registration. Of
   * several tools with one name that of the highest rank serves, of those the latest. A negative rank never takes the place of a
   * tool that serves everywhere. Throws if one of them is not a tool, or
   * not one of this name.
   */
  register(tools: ToolsByName, workspace?: string, rank?: number): () => void;
  /** Returns the tool that serves under a name in a workspace root. A call keeps it, whatever is registered or removed later. */
  get(name: string, workspace: string): Tool | undefined;
  /** Reports whether a tool serves under a name in any workspace. */
  knows(name: string): boolean;
  /** Tools that serve in any workspace root, sorted by name. */
  all(): Tool[];
  /** Tools that serve in a workspace root, sorted by name. */
  list(workspace: string): Tool[];
  /** Number of changes of the registered tools. */
  revision(): number;
  /** Adds a provider, which is refreshed before a tool is resolved. */
  addProvider(provider: ToolProvider): void;
  /** Lets the providers register what has changed. */
  refresh(workspace: string): Promise<void>;
  /** The reason of a provider to deny all calls in a workspace root. */
  guardProblem(workspace: string): string | undefined;
}

/** A source of tools that may change by itself, such as files. */
export interface ToolProvider {
  /** Registers the tools of a workspace root as they are now. */
  refresh(workspace: string): Promise<void>;
  /** The reason to deny all calls in a workspace root; undefined if there is none. */
  guardProblem(workspace: string): string | undefined;
}

/** Creates an empty registry. It ignores experimental tools that are not named. `registered` is called with the tools of each registration. */
export function createRegistry(
  { experimental = [] }: { experimental?: readonly string[] } = {},
  registered: (tools: readonly Tool[]) => void = () => {},
): Registry {
  const everywhere: Layer = new Map();
  const workspaces = new Map<string, Layer>();
  const providers: ToolProvider[] = [];
  let revision = 0;

  function layerOf(workspace: string | undefined): Layer {
    if (workspace === undefined) return everywhere;
    const layer = workspaces.get(workspace) ?? new Map();
    workspaces.set(workspace, layer);
    return layer;
  }

  function get(name: string, workspace: string): Tool | undefined {
    const own = workspaces.get(workspace)?.get(name)?.at(-1);
    const shared = everywhere.get(name)?.at(-1);
    // A tool of a workspace takes precedence, except one of a lower rank than the default.
    return own && shared && own.rank < Math.min(0, shared.rank) ? shared.tool : (own ?? shared)?.tool;
  }
  return {
    register(tools, workspace, rank = 0) {
      const bound = Object.entries(tools).map(([name, tool]) => bindTool(name, tool));
      const layer = layerOf(workspace);
      // One object for each registration, so that two registrations of the same tool can be removed separately.
      const registrations = bound
        .filter((tool) => !tool.experimental || experimental.includes(tool.name))
        .map((tool) => ({ tool, rank }));
      for (const registration of registrations) {
        const { name } = registration.tool;
        const [below, above] = splitByRank(layer.get(name) ?? [], rank);
        layer.set(name, [...below, registration, ...above]);
      }
      revision += 1;
      registered(registrations.map(({ tool }) => tool));
      return () => {
        for (const registration of registrations) {
          const { name } = registration.tool;
          layer.set(name, layer.get(name)?.filter((other) => other !== registration) ?? []);
        }
        revision += 1;
      };
    },
    get,
    knows: (name) => [everywhere, ...workspaces.values()].some((layer) => last(layer, name) !== undefined),
    all() {
      const layers = [everywhere, ...workspaces.values()];
      const names = new Set(layers.flatMap((layer) => [...layer.keys()]));
      return [...names].sort().flatMap((name) => layers.flatMap((layer) => last(layer, name) ?? []));
    },
    list(workspace) {
      const names = new Set([...everywhere.keys(), ...(workspaces.get(workspace)?.keys() ?? [])]);
      return [...names].sort().flatMap((name) => get(name, workspace) ?? []);
    },
    revision: () => revision,
    addProvider: (provider) => void providers.push(provider),
    async refresh(workspace) {
      for (const provider of providers) await provider.refresh(workspace);
    },
    guardProblem: (workspace) =>
      providers.map((provider) => provider.guardProblem(workspace)).find((problem) => problem !== undefined),
  };
}

interface Registration {
  readonly tool: Tool;
  readonly rank: number;
}

/** Registrations by the name of their tool: the last one serves. */
type Layer = Map<string, readonly Registration[]>;

/** Splits registrations into those up to a rank and those above it. */
function splitByRank(
  registrations: readonly Registration[],
  rank: number,
): [readonly Registration[], readonly Registration[]] {
  const above = registrations.findIndex((other) => other.rank > rank);
  return above < 0 ? [registrations, []] : [registrations.slice(0, above), registrations.slice(above)];
}

function last(layer: Layer | undefined, name: string): Tool | undefined {
  return layer?.get(name)?.at(-1)?.tool;
}
