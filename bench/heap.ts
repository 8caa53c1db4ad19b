import * as z from "zod";
import type { ServerProcess } from "./processes.ts";

/** The flag with which a server must have been started. */
export const inspectable = "--inspect=127.0.0.1:0";

/** Collects a server's garbage and resolves to the bytes that remain: its heap and external memory. */
export async function liveBytes({ printed }: ServerProcess): Promise<number> {
  const socket = new WebSocket((await printed(/ws:\/\/\S+/)).trim());
  try {
    await new Promise((resolve, reject) => {
      socket.addEventListener("open", resolve);
      socket.addEventListener("error", () => reject(new Error("the server's inspector cannot be reached")));
    });
    await ask(socket, "HeapProfiler.collectGarbage");
    const expression = "process.memoryUsage().heapUsed + process.memoryUsage().external";
    const { result } = evaluated.parse(await ask(socket, "Runtime.evaluate", { expression }));
    return result.value;
  } finally {
    socket.close();
  }
}

/** Sends one question at a time, so that the next message with an id is its answer; events have no id. */
function ask(socket: WebSocket, method: string, params: object = {}): Promise<unknown> {
  return new Promise((resolve) => {
    socket.addEventListener("message", function onMessage({ data }) {
      const { id, result } = answered.parse(JSON.parse(String(data)));
      if (id === undefined) return;
      socket.removeEventListener("message", onMessage);
      resolve(result);
    });
    socket.send(JSON.stringify({ id: 1, method, params }));
  });
}

const evaluated = z.object({ result: z.object({ value: z.number() }) });
const answered = z.object({ id: z.number().optional(), result: z.unknown() });
