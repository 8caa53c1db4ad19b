import { readFile } from "node:fs/promises";
import { join } from "node:path";

/** A line that a command wrote while it ran: the ground truth about runs, outside of every store. */
export interface LedgerLine {
  word: "start" | "tick" | "end";
  callId: string;
  pid: number;
  /** Milliseconds since the epoch, by the clock of the machine. */
  time: number;
}

/** Creates a file that commands append to. Only processes fail here, no machine, so written lines are durable. */
export function createLedger(workspace: string) {
  const name = "ledger-runs";
  return {
    /** Builds a command that writes a line at its start, every 50 ms, and at its end. */
    command(callId: string, ticks: number): string {
      const say = `say() { echo "$1 ${callId} $$ $EPOCHREALTIME" >> ${name}; }`;
      return `${say}; say start; echo begun; for ((i = 0; i < ${ticks}; i++)); do sleep 0.05; say tick; done; say end; echo done`;
    },
    async lines(): Promise<LedgerLine[]> {
      const text = await readFile(join(workspace, name), "utf8").catch(() => "");
      return text.split("\n").slice(0, -1).map(parse);
    },
  };
}

export type Ledger = ReturnType<typeof createLedger>;

function parse(line: string): LedgerLine {
  const [word, callId = "", pid, seconds] = line.split(" ");
  if (word !== "start" && word !== "tick" && word !== "end") throw new Error(`the ledger holds "${line}"`);
  return { word, callId, pid: Number(pid), time: Number(seconds) * 1_000 };
}
