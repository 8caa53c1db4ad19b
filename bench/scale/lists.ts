import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { openAsks } from "../commits/sides.ts";
import type { Goal } from "../goals.ts";
import type { Http2Client } from "../http2-client.ts";
import { timesOf } from "../load.ts";
import type { Processes } from "../processes.ts";
import { startRedis } from "../redis.ts";
import { percentile, spread, table } from "../report.ts";
import { ratios } from "../rounds.ts";
import { startToolgate } from "../toolgate.ts";
import { createAskingFile } from "./asking-file.ts";

/** Sizes: open requests, few and many, and milliseconds of each of some rounds. */
export interface ListsPlan {
  readonly few: number;
  readonly many: number;
  readonly rounds: number;
  readonly ms: number;
}

/** Measures how long an approver waits for the first 50 open requests, of few and of many, on both stores. */
export async function measureLists(
  processes: Processes,
  { few, many, rounds, ms }: ListsPlan,
  print: (text: string) => void,
): Promise<Goal[]> {
  const goals: Goal[] = [];
  const rows: string[][] = [];
  const count = (asks: number) => asks.toLocaleString("en");
  for (const store of ["SQLite", "Redis"]) {
    const redis = store === "Redis" ? await startRedis(processes) : undefined;
    const start = (asks: number) =>
      startToolgate(processes, { name: `lists-${store}-${asks}`, ...(redis && { store: redis.url }) });
    const p50s = (client: Http2Client) => async () => {
      const list = async () => void (await client.connect(PermissionService.method.listPermissions, { pageSize: 50 }));
      return percentile(await timesOf(list, ms), 0.5);
    };
    const service = await start(few);
    const [caller, list] = [service.connect("caller"), p50s(service.connect("approver-1"))];
    const filePath = await createAskingFile(service.workspace);
    await openAsks(caller, filePath, few);
    const inRounds = async () => {
      const values: number[] = [];
      for (let round = -1; round < rounds; round += 1) values.push(await list());
      return values.slice(1); // The first round warms up.
    };
    const ofFew = await inRounds();
    await openAsks(caller, filePath, many - few);
    const [ofMany, control] = [await inRounds(), await inRounds()];
    await processes.stopAll();
    rows.push([store, spread(ofFew, 2), spread(ofMany, 2), spread(ratios(ofMany, ofFew), 2)]);
    goals.push({
      figure: `50 of ${count(many)} open requests on ${store}, p50`,
      ...{ limit: 4, unit: "ms", values: ofMany, control: ratios(control, ofMany) },
    });
  }
  print(table(["50 open requests listed, p50 ms", `of ${count(few)}`, `of ${count(many)}`, "ratio"], rows));
  return goals;
}
