import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { clientOf } from "../e2e/clients.ts";
import { hostTokens } from "../e2e/host.ts";
import { type Service, startService } from "../e2e/service.ts";
import { createPlace } from "./agents.ts";
import { connectPerson } from "./claude-runner.ts";
import { type Connector, connectors, httpHook, ownProgram } from "./connectors.ts";
import { type McpAgent, type McpTransport, mcpAgents, runMcp, untilItRuns } from "./mcp-clients.ts";
import { type Script, serveAnthropic } from "./mock-models.ts";

/** Ten minutes, and longer than the limit of every hook. */
const waits = { "10 minutes": 600_000, "beyond the limit": 700_000 } as const;

/** A way to ask; returns the results that reached the model. */
type Way = (service: Service, command: string) => Promise<readonly string[]>;

const { "Claude Code": claude, opencode } = mcpAgents as Record<"Claude Code" | "opencode", McpAgent>;

/** The ways with a limit of their own, in seconds, as `toolgate connect` writes it. */
const limited: Readonly<Record<string, Way>> = {
  ...Object.fromEntries(Object.entries(connectors).map(([name, connector]) => [name, throughConnector(connector)])),
  "the HTTP hook of Claude Code": throughConnector(httpHook),
};

const unlimited: Readonly<Record<string, Way>> = {
  "`toolgate claude`": async (service, command) => {
    const person = await connectPerson(service);
    const model = await serveAnthropic([["go", [{ tool: "Bash", input: { command } }]]]);
    await person.claude(model, ["go"]);
    return model.results;
  },
  "MCP over stdio, Claude Code": throughMcp(claude, "stdio"),
  "MCP over stdio, opencode": throughMcp(opencode, "stdio"),
  "MCP over HTTP, Claude Code": throughMcp(claude, "HTTP"),
  "MCP over HTTP, opencode": throughMcp(opencode, "HTTP"),
};

/** The model repeats at once a use that was not answered in time. */
function throughConnector(connector: Connector): Way {
  return async ({ url, workspace }, command) => {
    const place = await createPlace(workspace);
    const model = await connector.serve(repeating(connector.script(command)));
    const options = { server: url, token: "host-token-for-tests", timeout: 660, program: ownProgram };
    await connector.run(place, model, options);
    return model.results;
  };
}

function repeating(script: Script): Script {
  return script.map(([text, steps]) => [
    text,
    (results) => {
      const isAsked = results.length === 0 || repeatable.test(results.at(-1) ?? "");
      return isAsked && typeof steps === "object" ? steps[0] : undefined;
    },
  ]);
}

function throughMcp(agent: McpAgent, transport: McpTransport): Way {
  return async (service, command) =>
    (await runMcp(agent, transport, service, untilItRuns(agent, "bash", { command, description: "waits" }))).results;
}

/** Approves each request a time after it was first seen; returns what each asked for, by marker. */
async function approveLater(service: Service, waitMsOf: ReadonlyMap<string, number>, signal: AbortSignal) {
  const permissions = clientOf(PermissionService, service.url, "approver-token-for-tests");
  const seen = new Map<string, { marker: string; permission: string; at: number }>();
  while (!signal.aborted) {
    for (const request of (await permissions.listPermissions({})).permissions) {
      const { id: permissionId, sessionId, permission, display } = request;
      const marker = /marker-\d+/.exec(display.join())?.[0] ?? "";
      const { at } = seen.get(permissionId) ?? { at: performance.now() };
      seen.set(permissionId, { marker, permission, at });
      if (performance.now() - at < (waitMsOf.get(marker) ?? 0)) continue;
      await permissions.respondToPermission({ permissionId, sessionId, reply: PermissionReply.ONCE });
    }
    await sleep(1_000, undefined, { signal }).catch(() => undefined);
  }
  return [...seen.values()].map(({ marker, permission }) => `${marker}: ${permission}`);
}

const unanswered = /not answered yet|Nothing has run yet/;
/** A busy machine may refuse a use before it waits, and says to try again. */
const repeatable = /not answered yet|did not answer in time/;

/** Waits of one way and one length. */
interface WaitFigures {
  way: string;
  /** Time from the request to the approval. */
  seconds: number;
  waits: number;
  /** Waits whose approved use did not run, or ran twice, or whose result did not reach the model. */
  lost: number;
  /** Results of all waits that say that nothing has run yet. */
  early: number;
}

const isLong = process.env.LONG === "1";

test.runIf(isLong)("no approval after 10 minutes is lost, by no way", { timeout: 1_200_000 }, async () => {
  const service = await startService({
    settings: `${hostTokens}[permission.edit]\n"marker-*" = "allow"\n`,
  });
  const planned = [
    ...Object.entries({ ...unlimited, ...limited }).flatMap((way) =>
      [way, way].map((each) => [...each, "10 minutes"] as const),
    ),
    ...Object.entries(limited).map((way) => [...way, "beyond the limit"] as const),
  ];
  const waitMsOf = new Map(planned.map(([, , wait], i) => [`marker-${i}`, waits[wait]]));
  const over = new AbortController();
  const approving = approveLater(service, waitMsOf, over.signal);
  const ends = await Promise.all(
    planned.map(async ([way, run, wait], i) => {
      // Programs that start at the same time would only wait for each other.
      await sleep(i * 4_000);
      const results = await run(service, `echo ran >> marker-${i}; expr 123456 + 654321`);
      const file = join(service.workspace, `marker-${i}`);
      const ran = existsSync(file) ? readFileSync(file, "utf8") : "";
      return { way, wait, results, isLost: ran !== "ran\n" || !results.at(-1)?.includes("777777") };
    }),
  );
  over.abort();
  const requests = await approving;
  const figures: WaitFigures[] = [...Map.groupBy(ends, ({ way, wait }) => `${way}, ${wait}`).values()].map((same) => ({
    way: same[0]?.way ?? "",
    seconds: waits[same[0]?.wait ?? "10 minutes"] / 1_000,
    waits: same.length,
    lost: same.filter(({ isLost }) => isLost).length,
    early: same.reduce((sum, { results }) => sum + results.filter((text) => unanswered.test(text)).length, 0),
  }));
  // `npm run bench -- --waits` reads it.
  writeFileSync(".cache/long-waits.json", JSON.stringify(figures, null, 2));
  expect(ends.filter(({ isLost }) => isLost)).toEqual([]);
  expect(requests).toHaveLength(new Set(requests).size);
});
