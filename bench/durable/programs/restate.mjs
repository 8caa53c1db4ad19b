/** Handlers of Restate: an echo, the same in a step, and a wait for an awakeable. The argument is the URL of Restate's admin API. */
import * as restate from "@restatedev/restate-sdk";
import { askedOf, serve } from "./asked.mjs";

const engine = restate.service({
  name: "engine",
  handlers: {
    echo: async (_, { text }) => text,
    step: (context, { text }) => context.run("echo", () => text),
    async wait(context, { call }) {
      const { id, promise } = context.awakeable();
      askedOf(call).resolve(await context.run("ask", () => id));
      return await promise;
    },
  },
});
const [admin] = process.argv.slice(2);
const port = await restate.serve({ services: [engine], port: 0 });
const registered = await fetch(`${admin}/deployments`, {
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify({ uri: `http://127.0.0.1:${port}` }),
});
if (!registered.ok) throw new Error(`Restate did not take the handlers: ${await registered.text()}`);
serve(() => {
  throw new Error("calls go to Restate");
});
