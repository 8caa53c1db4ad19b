import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import * as z from "zod";
import { profileTables } from "../profile.ts";
import { table } from "../report.ts";

/** Sizes of the measurement. */
export interface PipelinePlan {
  warmUp: number;
  rounds: number;
  calls: number;
}

const measured = z.object({
  direct: z.number(),
  decoding: z.number(),
  alone: z.number(),
  together: z.number(),
  began: z.number(),
  ended: z.number(),
});

/** Measures the whole pipeline around a function that does nothing, and profiles it. */
export async function measurePipeline(
  folder: string,
  { warmUp, rounds, calls }: PipelinePlan,
  print: (text: string) => void,
): Promise<void> {
  const measure = async (flags: string[]) => {
    const args = [...flags, join(import.meta.dirname, "measure.ts"), ...[warmUp, rounds, calls].map(String)];
    const { stdout } = await promisify(execFile)(process.execPath, args, { maxBuffer: 1 << 20 });
    return measured.parse(JSON.parse(stdout));
  };
  const { direct, decoding, alone, together } = await measure([]);
  const text = (value: number) => value.toLocaleString("en", { maximumSignificantDigits: 3 });
  const row = (label: string, value: number) => [label, text(value), text(value - direct)];
  print(
    `A tool that does nothing, called in the service's own process, store in memory (the median of ${rounds} rounds of ${calls.toLocaleString("en")} calls):`,
  );
  print(
    table(
      ["", "µs/call", "over the function"],
      [
        row("the function itself", direct),
        row("its input decoded", decoding),
        row("the whole pipeline, one call at a time", alone),
        row("the whole pipeline, 16 at a time", together),
      ],
    ),
  );
  const profiled = join(folder, "pipeline");
  const { began, ended } = await measure(["--cpu-prof", "--cpu-prof-dir", profiled, "--cpu-prof-interval", "200"]);
  print(await profileTables(profiled, began, ended, 15));
}
