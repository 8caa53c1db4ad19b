// What is loaded when it is first shown. It is one piece: several would be larger together.
export { Policy } from "../policy/policy.tsx";
export { Sessions } from "../session/sessions.tsx";
export { Tools } from "../tools/tools.tsx";
