import { expect, onTestFinished, test } from "vitest";
import { AgentService } from "../../gen/opencode/tool/v1/agent_service_pb.ts";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { SourceService } from "../../gen/opencode/tool/v1/source_service_pb.ts";
import { WorkerService } from "../../gen/opencode/tool/v1/worker_service_pb.ts";
import { connectWorker, echoTool } from "../bodies/workers/raw-worker.ts";
import { toolgate } from "../cli/toolgate.ts";
import { clientOf, connect, refusal } from "./clients.ts";
import { useService } from "./service.ts";

const token = (id: string) => `[[token]]
id = "${id}"
roles = ["worker"]
tools = ["ci_*"]
value = "${id}-token-for-tests"
`;
const service = useService({
  settings: `${["ci-worker", "other", "many-0", "many-1", "many-2"].map(token).join("")}
[mcp.two]
url = "http://127.0.0.1:9/mcp"
[mcp.one]
url = "http://127.0.0.1:9/mcp"
`,
});
const approver = "approver-token-for-tests";
const agents = () => clientOf(AgentService, service.url, approver);
const credentials = () => clientOf(CredentialService, service.url, approver);

interface Page {
  pageSize?: number;
  pageToken?: string;
}

/** Names of the entries of a page, for each list that had no pages at first. */
const lists = {
  async ListTools(page: Page) {
    const { tools, nextPageToken } = await connect(service, "caller").tools.listTools(page);
    return { names: tools.map(({ name }) => name), nextPageToken };
  },
  async ListAgents(page: Page) {
    const { agents: listed, nextPageToken } = await agents().listAgents(page);
    return { names: listed.map(({ name }) => name), nextPageToken };
  },
  async ListConnectors(page: Page) {
    const { connectors, nextPageToken } = await agents().listConnectors(page);
    return { names: connectors.map(({ place }) => place), nextPageToken };
  },
  async ListCredentials(page: Page) {
    const { credentials: listed, nextPageToken } = await credentials().listCredentials(page);
    return { names: listed.map(({ id }) => id), nextPageToken };
  },
  async ListSources(page: Page) {
    const { sources, nextPageToken } = await clientOf(SourceService, service.url, approver).listSources(page);
    return { names: sources.map(({ name }) => name), nextPageToken };
  },
  async ListWorkers(page: Page) {
    const { workers, nextPageToken } = await clientOf(WorkerService, service.url, approver).listWorkers(page);
    return { names: workers.map(({ instanceId }) => instanceId), nextPageToken };
  },
};

const register = (place: string) => agents().registerConnector({ kind: "claude", place, files: [`/tmp/${place}`] });

async function fill() {
  for (const place of ["a", "b", "c"]) await register(place);
  for (const label of ["x", "y", "z"]) await credentials().createToken({ roles: ["caller"], label });
  for (const id of ["ci-worker", "other"]) {
    const worker = await connectWorker(service, { token: `${id}-token-for-tests`, tools: [echoTool(`ci_${id[0]}`)] });
    onTestFinished(worker.cut);
  }
}

test("each list has the same entries in pages of one, of all but one, and without pages", async () => {
  await fill();
  for (const [rpc, list] of Object.entries(lists)) {
    const { names: all, nextPageToken: end } = await list({});
    expect({ rpc, end, isLong: all.length > 1 }).toEqual({ rpc, end: "", isLong: true });
    expect(new Set(all).size).toBe(all.length);
    for (const pageSize of [1, all.length - 1]) {
      const pages: string[][] = [];
      for (let pageToken = ""; ; ) {
        const page = await list({ pageSize, pageToken });
        pages.push(page.names);
        pageToken = page.nextPageToken;
        if (pageToken === "") break;
      }
      expect({ rpc, names: pages.flat() }).toEqual({ rpc, names: all });
      expect(pages.map(({ length }) => length).every((length) => length > 0 && length <= pageSize)).toBe(true);
    }
    expect(await refusal(list({ pageSize: 501 }))).toMatchObject({ reason: "INVALID_MESSAGE" });
  }
});

test("the next page follows an entry that is gone", async () => {
  for (const place of ["d", "e", "f"]) await register(place);
  const { names: before } = await lists.ListConnectors({});
  const [first] = (await agents().listConnectors({ pageSize: 1 })).connectors;
  const { nextPageToken } = await lists.ListConnectors({ pageSize: 1 });
  await agents().unregisterConnector({ id: first?.id ?? "" });
  const { names } = await lists.ListConnectors({ pageToken: nextPageToken });
  expect([first?.place, ...names]).toEqual(before);
});

test("clients read all of more tools than a page has", async () => {
  const names = Array.from({ length: 600 }, (_, index) => `ci_${String(index).padStart(3, "0")}`);
  for (const part of [0, 1, 2]) {
    const tools = names.slice(part * 200, (part + 1) * 200).map((name) => echoTool(name));
    onTestFinished((await connectWorker(service, { token: `many-${part}-token-for-tests`, tools })).cut);
  }
  const first = await lists.ListTools({});
  expect(first.names).toHaveLength(500);
  const { stdout } = await toolgate(["tools", "--json"], {
    TOOLGATE_URL: service.url,
    TOOLGATE_TOKEN: "caller-token-for-tests",
  });
  const printed = stdout.trimEnd().split("\n");
  expect(printed.flatMap((line) => JSON.parse(line).name).filter((name) => names.includes(name))).toEqual(names);
});

test("the last page of an audit says so, also if it is full", async () => {
  const caller = connect(service, "caller");
  const sessionId = await caller.newSession();
  for (const callId of ["1", "2", "3", "4"])
    await caller.tools.callTool({ sessionId, callId, tool: "echo", input: { text: callId } });
  const { permissions } = connect(service, "approver");
  const whole = await permissions.listDecisions({ sessionId });
  expect(whole.end).toBe(true);
  const pageSize = whole.entries.length / 2;
  const first = await permissions.listDecisions({ sessionId, pageSize });
  const second = await permissions.listDecisions({ sessionId, pageSize, afterSeq: first.entries.at(-1)?.seq ?? 0n });
  expect([...first.entries, ...second.entries]).toEqual(whole.entries);
  expect([first.end, second.end]).toEqual([false, true]);
});
