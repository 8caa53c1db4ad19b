import type { Tool } from "./tool.ts";

/** The tools by name. */
export interface Registry {
  /** Adds a tool and returns the function that removes exactly this registration. Of several with one name the latest serves. */
  register(tool: Tool): () => void;
  get(name: string): Tool | undefined;
  /** What serves, sorted by name. */
  list(): Tool[];
}

export function createRegistry(): Registry {
  const registrations = new Map<string, Tool[]>();
  return {
    register(tool) {
      // One object for each registration, so that registering the same tool twice can be undone one by one.
      const registration = { ...tool };
      registrations.set(tool.name, [...(registrations.get(tool.name) ?? []), registration]);
      return () => {
        const left = (registrations.get(tool.name) ?? []).filter((other) => other !== registration);
        if (left.length === 0) registrations.delete(tool.name);
        else registrations.set(tool.name, left);
      };
    },
    get: (name) => registrations.get(name)?.at(-1),
    list: () => [...registrations.keys()].sort().flatMap((name) => registrations.get(name)?.at(-1) ?? []),
  };
}
