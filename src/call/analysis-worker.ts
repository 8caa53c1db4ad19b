import { parentPort } from "node:worker_threads";
import { readWholeLine } from "../policy/risk.ts";
import type { AnalysisAnswer } from "./line-analysis.ts";

// Thread of `createLineAnalysis`: reads each line that it gets, and the longer commands of the line by themselves.
parentPort?.on("message", (line: string) => {
  const before = process.threadCpuUsage();
  const readings = readWholeLine(line);
  const { user, system } = process.threadCpuUsage(before);
  parentPort?.postMessage({ readings, ms: (user + system) / 1_000 } satisfies AnalysisAnswer);
});
parentPort?.postMessage("ready");
