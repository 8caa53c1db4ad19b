import { parentPort } from "node:worker_threads";
import { readWholeLine } from "../policy/risk.ts";

// Thread of `createLineAnalysis`: reads each line that it gets, and the longer commands of the line by themselves.
parentPort?.on("message", (line: string) => parentPort?.postMessage(readWholeLine(line)));
parentPort?.postMessage("ready");
