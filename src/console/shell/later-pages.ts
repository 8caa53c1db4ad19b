// The pages that are loaded when first shown. One chunk is smaller than several.
export { PolicyPage } from "../policy/policy.tsx";
export { SessionsPage } from "../session/sessions.tsx";
export { SourcesPage } from "../sources/sources.tsx";
export { Tools } from "../tools/tools.tsx";
export { WorkersPage } from "../workers/workers.tsx";
