// What is loaded when it is first shown. It is one piece: several would be larger together.
export { PolicyPage } from "../policy/policy.tsx";
export { SessionsPage } from "../session/sessions.tsx";
export { Tools } from "../tools/tools.tsx";
