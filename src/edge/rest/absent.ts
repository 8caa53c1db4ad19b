import type { RestRoute } from "./route.ts";

const media = { text: true, audio: false, image: false, video: false, pdf: false };

/** A model that names itself: without any, opencode's terminal client asks for a provider before it shows anything else. */
const model = {
  ...{ id: "none", providerID: "toolgate", name: "no model: answers permission requests only" },
  api: { id: "none", url: "", npm: "" },
  capabilities: {
    ...{ temperature: false, reasoning: false, attachment: false, toolcall: false, interleaved: false },
    input: media,
    output: media,
  },
  cost: { input: 0, output: 0, cache: { read: 0, write: 0 } },
  limit: { context: 0, output: 0 },
  ...{ status: "active", options: {}, headers: {}, release_date: "" },
};
const provider = { id: "toolgate", name: "Toolgate", source: "custom", env: [], options: {}, models: { none: model } };
const selected = { toolgate: "none" };

/** Answers about parts of opencode that Toolgate does not have. Its terminal client does not start without them. */
const answers: Readonly<Record<string, unknown>> = {
  "/config": {},
  "/config/providers": { providers: [provider], default: selected },
  "/provider": { all: [provider], default: selected, connected: [provider.id] },
  "/provider/auth": {},
  "/command": [],
  "/lsp": [],
  "/formatter": [],
  "/mcp": {},
  "/vcs": {},
  "/experimental/resource": {},
  "/experimental/workspace": [],
  "/session/:id/todo": [],
  "/session/:id/diff": [],
};

/** Routes of parts that Toolgate does not have. */
export const absentRoutes: readonly RestRoute[] = Object.entries(answers).map(([path, answer]) => ({
  method: "GET",
  path,
  run: () => answer,
}));
