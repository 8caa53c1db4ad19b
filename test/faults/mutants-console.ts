/** Before the tests that must notice a fault: builds the console if the fault is in it. */
export { buildConsole as setup } from "../builds.ts";
