// What is loaded when it is first shown. It is one piece: two would hold twice what they share.
export { Policy } from "./policy/policy.tsx";
export { Tools } from "./tools/tools.tsx";
