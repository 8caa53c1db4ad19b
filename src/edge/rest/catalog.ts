import { pagesOf } from "../../core/pages-of.ts";
import type { Principal } from "../../core/principal.ts";
import { invalidRequest, type RestCall, type RestRoute } from "./route.ts";
import { projectJson, restVersion } from "./shapes.ts";

/** Routes that describe the service: its places, agents and tools. */
export const catalogRoutes: readonly RestRoute[] = [
  { method: "GET", path: "/global/health", run: () => ({ healthy: true, version: restVersion }) },
  { method: "GET", path: "/path", run: describePaths },
  { method: "GET", path: "/agent", run: listAgents },
  { method: "GET", path: "/project", run: (call) => placesOf(call).map((place) => projectJson(...place)) },
  { method: "GET", path: "/project/current", run: (call) => projectJson(...currentPlace(call)) },
  {
    method: "GET",
    path: "/experimental/tool/ids",
    run: async (call) => (await toolsOf(call, "", "")).map(({ name }) => name),
  },
  { method: "GET", path: "/experimental/tool", run: listTools },
];

/** Returns the paths; those of the service's own files stay unnamed. */
function describePaths(call: RestCall) {
  const [, directory] = currentPlace(call);
  return { home: "", state: "", config: "", worktree: directory, directory };
}

async function listAgents({ api, signal }: RestCall) {
  const { agentDetails } = await api.tools.getServerInfo({}, { signal });
  return agentDetails.map(({ agent: name, description }) => ({
    ...{ name, description, mode: "all", native: true, permission: [], options: {} },
  }));
}

async function listTools(call: RestCall) {
  const [provider, model] = ["provider", "model"].map((name) => call.query.get(name) ?? "");
  if (!provider || !model) throw invalidRequest(provider ? "model" : "provider", "it is missing; name both");
  const tools = await toolsOf(call, provider, model);
  return tools.map(({ name, description, inputSchema }) => ({ id: name, description, parameters: inputSchema ?? {} }));
}

async function toolsOf({ api, signal }: RestCall, providerId: string, modelId: string) {
  const pages = pagesOf((page) => api.tools.listTools({ ...page, providerId, modelId }, { signal }));
  return (await Array.fromAsync(pages)).flatMap(({ tools }) => tools);
}

/** Returns the workspace root of the request's directory, otherwise `default` or the first one that the token may use. */
function currentPlace(call: RestCall): readonly [name: string, directory: string] {
  const places = placesOf(call);
  const wanted = call.workspace ?? "default";
  return places.find(([name]) => name === wanted) ?? places[0] ?? ["", ""];
}

function placesOf({ sources, principal }: RestCall) {
  return [...sources.roots].filter(([name]) => mayUse(principal, name));
}

function mayUse({ workspaces }: Principal, name: string): boolean {
  return workspaces.includes("*") || workspaces.includes(name);
}
