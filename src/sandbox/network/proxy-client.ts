import { fork } from "node:child_process";
import type { Server } from "node:net";
import { fileURLToPath } from "node:url";
import { assets } from "../../core/assets.ts";
import type { FromProxy, ToProxy, Traffic } from "./messages.ts";
import type { HostPort } from "./target.ts";

/** Judges a request to the proxy; returns the refusal, undefined if it may go on. */
export type JudgeOfNetwork = (
  network: number,
  url: string,
  addresses: readonly string[] | undefined,
) => Promise<string | undefined>;

/** The process that connects commands to hosts. */
export interface ProxyProcess {
  readonly pid: number | undefined;
  /** Hands over a listening socket of a network; with `forward` it leads to that address alone. */
  open(network: number, server: Server, forward?: HostPort): Promise<void>;
  close(network: number): void;
  /** Returns the traffic of a network since the last time; empty if the process has ended. */
  collect(network: number): Promise<readonly Traffic[]>;
  stop(): void;
}

/** Starts the process without an environment, so that it holds no secret. `onExit` is called when it has ended. */
export function startProxy(judge: JudgeOfNetwork, onExit: () => void): ProxyProcess {
  const child = fork(fileURLToPath(assets.proxyProcess), [], {
    ...{ cwd: "/", env: {}, execArgv: [], serialization: "json" },
    stdio: ["ignore", "ignore", "ignore", "ipc"],
  });
  child.unref();
  child.channel?.unref();
  const opening = new Map<number, () => void>();
  const collecting = new Map<number, (traffic: readonly Traffic[]) => void>();
  let waiting = 0;
  const { promise: exited, resolve: exit } = Promise.withResolvers<void>();
  const send = (message: ToProxy, server?: Server) => {
    if (child.connected) child.send(message, server, () => undefined);
  };
  child.on("message", (message: FromProxy) => {
    switch (message.case) {
      case "opened":
        return opening.get(message.network)?.();
      case "collected":
        return collecting.get(message.network)?.(message.traffic);
      case "judge": {
        const { question, network, url, addresses } = message;
        void judge(network, url, addresses)
          .catch((error: unknown) => `the request could not be judged: ${String(error)}`)
          .then((refusal) => send({ case: "answer", question, ...(refusal !== undefined && { refusal }) }));
      }
    }
  });
  /** Waits for an answer of the process; undefined if it has ended. Only meanwhile it keeps this process alive. */
  async function answerTo<Answer>(begin: (resolve: (answer: Answer) => void) => void): Promise<Answer | undefined> {
    const { promise, resolve } = Promise.withResolvers<Answer>();
    waiting += 1;
    child.channel?.ref();
    begin(resolve);
    const answer = await Promise.race([promise, exited.then(() => undefined)]);
    waiting -= 1;
    if (waiting === 0) child.channel?.unref();
    return answer;
  }

  const end = () => {
    exit();
    onExit();
  };
  child.once("exit", end).once("error", end);
  return {
    pid: child.pid,
    async open(network, server, forward) {
      const isOpen = await answerTo<true>((resolve) => {
        opening.set(network, () => resolve(true));
        send({ case: "open", network, ...(forward && { forward }) }, server);
      });
      opening.delete(network);
      if (!isOpen) throw new Error("the proxy has ended");
    },
    close: (network) => send({ case: "close", network }),
    async collect(network) {
      const traffic = await answerTo<readonly Traffic[]>((resolve) => {
        collecting.set(network, resolve);
        send({ case: "collect", network });
      });
      return traffic ?? [];
    },
    stop: () => child.kill("SIGKILL"),
  };
}
