import type { Mount } from "../http/mounts.ts";
import type { RestRoute } from "./route.ts";

/** A route, and the named parts of the path that matched it. */
export interface MatchedRoute {
  route: RestRoute;
  parts: Readonly<Record<string, string>>;
}

/** Routes by path. */
export interface RouteTable {
  match(method: string, path: string): MatchedRoute | undefined;
  /** Returns the places on the listener: whole paths with their methods, and prefixes of paths with parts. */
  mounts(): Pick<Mount, "path" | "methods">[];
}

/** Creates the table; of two routes that match, the earlier one is taken. */
export function createRouteTable(routes: readonly RestRoute[]): RouteTable {
  const split = routes.map((route) => ({ route, wanted: route.path.split("/") }));
  return {
    match(method, path) {
      const given = path.split("/");
      for (const { route, wanted } of split) {
        if (route.method !== method || wanted.length !== given.length) continue;
        const parts = partsOf(wanted, given);
        if (parts !== undefined) return { route, parts };
      }
      return undefined;
    },
    mounts() {
      const [whole, withParts] = [new Map<string, string[]>(), new Set<string>()];
      for (const { method, path } of routes) {
        const [start = ""] = path.split(":", 1);
        if (start === path) whole.set(path, [...(whole.get(path) ?? []), method]);
        else withParts.add(start);
      }
      return [...[...whole].map(([path, methods]) => ({ path, methods })), ...[...withParts].map((path) => ({ path }))];
    },
  };
}

/** Returns the named parts of a path; undefined if the path is another one. An id is printable without escapes. */
function partsOf(wanted: readonly string[], given: readonly string[]): Record<string, string> | undefined {
  const parts: Record<string, string> = {};
  for (const [index, name] of wanted.entries()) {
    const value = given[index] ?? "";
    if (name.startsWith(":") && /^[A-Za-z0-9_.-]{1,128}$/.test(value)) parts[name.slice(1)] = value;
    else if (name !== value) return undefined;
  }
  return parts;
}
