import { Server } from "node:net";
import type { FromProxy, ToProxy } from "./messages.ts";
import { createProxy, forwardTo, type NetworkProxy, Refusal } from "./proxy.ts";

// Child process of `startProxy`: it has no environment and no secrets, and ends with the service.
const networks = new Map<number, NetworkProxy>();
const forwards = new Map<number, Server[]>();
const questions = new Map<number, (refusal: string | undefined) => void>();
let lastQuestion = 0;

const send = (message: FromProxy) => process.send?.(message);

function networkOf(network: number): NetworkProxy {
  const known = networks.get(network);
  if (known !== undefined) return known;
  const proxy = createProxy(async (url, addresses) => {
    lastQuestion += 1;
    const question = lastQuestion;
    const { promise, resolve } = Promise.withResolvers<string | undefined>();
    questions.set(question, resolve);
    send({ case: "judge", network, question, url, ...(addresses && { addresses }) });
    const refusal = await promise;
    if (refusal !== undefined) throw new Refusal(refusal);
  });
  networks.set(network, proxy);
  return proxy;
}

process.on("message", (message: ToProxy, handle: unknown) => {
  switch (message.case) {
    case "open":
      if (!(handle instanceof Server)) return;
      if (message.forward) {
        forwardTo(message.forward, handle);
        forwards.set(message.network, [...(forwards.get(message.network) ?? []), handle]);
      } else networkOf(message.network).serve(handle);
      send({ case: "opened", network: message.network });
      return;
    case "close":
      networks.get(message.network)?.close();
      networks.delete(message.network);
      for (const server of forwards.get(message.network) ?? []) server.close();
      forwards.delete(message.network);
      return;
    case "answer":
      questions.get(message.question)?.(message.refusal);
      questions.delete(message.question);
      return;
    case "collect":
      send({ case: "collected", network: message.network, traffic: networkOf(message.network).collect() });
  }
});
process.once("disconnect", () => process.exit());
// Ctrl-C reaches the whole group; the service ends this process when it has drained.
process.on("SIGINT", () => {}).on("SIGTERM", () => {});
