import type { Tool } from "./tool.ts";

/** The tools by name: those of the whole process, and those of single workspaces, which come first there. */
export interface Registry {
  /**
   * Adds tools, for one workspace root or for all, and returns the function that removes exactly this registration. Of
   * several with one name the latest that is not removed serves.
   */
  register(tools: readonly Tool[], workspace?: string): () => void;
  /** What serves under a name in a workspace root. A call keeps what it got, whatever is registered or removed later. */
  get(name: string, workspace: string): Tool | undefined;
  /** Whether something serves under a name anywhere. */
  knows(name: string): boolean;
  /** Tools that serve in every workspace root, sorted by name. */
  common(): Tool[];
  /** Tools that serve in a workspace root, sorted by name. */
  list(workspace: string): Tool[];
}

/** Makes an empty registry; of experimental tools it has only those that are named. */
export function createRegistry({ experimental = [] }: { experimental?: readonly string[] } = {}): Registry {
  const everywhere: Layer = new Map();
  const workspaces = new Map<string, Layer>();

  function layerOf(workspace: string | undefined): Layer {
    if (workspace === undefined) return everywhere;
    const layer = workspaces.get(workspace) ?? new Map();
    workspaces.set(workspace, layer);
    return layer;
  }

  const get = (name: string, workspace: string) => last(workspaces.get(workspace), name) ?? last(everywhere, name);
  return {
    register(tools, workspace) {
      const layer = layerOf(workspace);
      // An object of its own for each, so that registering the same tool twice can be undone one by one.
      const registrations = tools
        .filter((tool) => !tool.experimental || experimental.includes(tool.name))
        .map((tool) => ({ tool }));
      for (const registration of registrations) {
        const { name } = registration.tool;
        layer.set(name, [...(layer.get(name) ?? []), registration]);
      }
      return () => {
        for (const registration of registrations) {
          const { name } = registration.tool;
          layer.set(name, layer.get(name)?.filter((other) => other !== registration) ?? []);
        }
      };
    },
    get,
    knows: (name) => [everywhere, ...workspaces.values()].some((layer) => last(layer, name) !== undefined),
    common: () => [...everywhere.keys()].sort().flatMap((name) => last(everywhere, name) ?? []),
    list(workspace) {
      const names = new Set([...everywhere.keys(), ...(workspaces.get(workspace)?.keys() ?? [])]);
      return [...names].sort().flatMap((name) => get(name, workspace) ?? []);
    },
  };
}

type Layer = Map<string, readonly { readonly tool: Tool }[]>;

function last(layer: Layer | undefined, name: string): Tool | undefined {
  return layer?.get(name)?.at(-1)?.tool;
}
