import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { parentPort, workerData } from "node:worker_threads";
import { readTokens } from "../../src/config/tokens.ts";

// A thread of "first starts": reads the tokens of new data directories, each at the same moment as the other threads.
const { directory, gate, threads }: { directory: string; gate: Int32Array; threads: number } = workerData;
const found = Array.from(gate, (_, round) => {
  const dataDirectory = join(directory, String(round));
  mkdirSync(dataDirectory, { recursive: true });
  Atomics.add(gate, round, 1);
  while (Atomics.load(gate, round) < threads);
  try {
    const given = { settings: { token: [] } as never, file: "", env: {}, workspaces: new Map(), dataDirectory };
    return readTokens({ ...given, insecureNoAuth: false, makeOwn: true, isCheck: false }).tokens[0]?.sha256;
  } catch (error) {
    return String(error);
  }
});
parentPort?.postMessage(found);
