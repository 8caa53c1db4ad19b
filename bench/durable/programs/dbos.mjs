/** Workflows of DBOS behind node:http: an echo in a step, and a wait for a message. The argument is the URL of the database. */
import { DBOS } from "@dbos-inc/dbos-sdk";
import { askedOf, serve } from "./asked.mjs";

const workflows = {
  step: DBOS.registerWorkflow((text) => DBOS.runStep(async () => text, { name: "echo" }), { name: "step" }),
  wait: DBOS.registerWorkflow(
    async (call) => {
      askedOf(call).resolve(await DBOS.runStep(async () => call, { name: "ask" }));
      return await DBOS.recv("answer");
    },
    { name: "wait" },
  ),
};
const [systemDatabaseUrl] = process.argv.slice(2);
DBOS.setConfig({ name: "bench", systemDatabaseUrl, logLevel: "error" });
await DBOS.launch();
serve(async (path, { call, text }) => {
  if (path === "answer") return DBOS.send(call, text, "answer").then(() => "");
  const handle = await DBOS.startWorkflow(workflows[path], { workflowID: call })(text ?? call);
  return await handle.getResult();
});
