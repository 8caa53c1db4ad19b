import { Code, ConnectError } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionReply, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "./clients.ts";
import { ledger } from "./ledger.ts";
import { nameOf, read } from "./reading.ts";
import { type Service, startService } from "./service.ts";

const rounds = 4;
const clients = 4;
/** In each round the service is killed after this many more results. */
const resultsPerRound = 12;

test("what was acknowledged before a kill -9 is there after it, whatever was under way", async () => {
  const service = await startService({ settings: "lease_ms = 1000" });
  const ended = new Map<string, ToolPart>();
  const answered = new Map<string, string>();
  const traffic = createTraffic(service, { ended, answered });
  for (let round = 1; round <= rounds; round += 1) {
    await traffic.results(round * resultsPerRound);
    await service.kill();
    await service.start();
    traffic.resume();
  }
  await traffic.stop();
  expect(ended.size).toBeGreaterThanOrEqual(rounds * resultsPerRound);

  const agent = connect(service, "caller");
  for (const [callId, part] of ended) {
    expect((await agent.tools.getToolPart({ sessionId: part.sessionId, callId })).part).toEqual(part);
  }
  for (const sessionId of traffic.sessions) await checkLog(service, sessionId, answered);
  for (const runs of traffic.ledgers) expect(await runs.lines()).toBeLessThanOrEqual(1);
}, 60_000);
