import { execFileSync } from "node:child_process";
import { chmodSync, cpSync, existsSync, mkdirSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { callByConnect, numbered, openSession } from "../echoes.ts";
import { createHttpClient } from "../http-client.ts";
import type { Target } from "../load.ts";
import { freePort, type Processes } from "../processes.ts";
import { askOnce } from "../scale/answer.ts";
import { createAskingFile } from "../scale/asking-file.ts";
import { startToolgate } from "../toolgate.ts";

/** An engine whose calls survive a crash, with all processes that it needs. */
export interface Engine extends Target {
  readonly label: string;
  /** Makes a call that waits until another client answers it; resolves to the ms from the answer to the result. */
  readonly wait?: () => Promise<number>;
}

const programs = join(import.meta.dirname, "programs");
const root = join(import.meta.dirname, "../..");
const installed = join(root, ".cache/durable");
const restateServer = join(installed, "node_modules/@restatedev/restate-server-linux-x64/bin/restate-server");

/** Takes the programs of the lock file from .cache; throws the line that installs them if others are there. */
export function prepareEngines(): void {
  const lock = (folder: string) => readFileSync(join(folder, "package-lock.json"), "utf8");
  if (!existsSync(restateServer) || lock(installed) !== lock(programs)) {
    const copy = `mkdir -p ${installed} && cp ${programs}/package*.json ${installed}`;
    const line = `${copy} && npm ci --ignore-scripts --no-audit --no-fund --prefix ${installed}`;
    throw new Error(`Restate and DBOS are not installed. Install them, about 0.2 GB, then run this again: ${line}`);
  }
  cpSync(programs, installed, { recursive: true });
}

/** Starts all of them; the control is a second service of ours. */
export async function startEngines(processes: Processes): Promise<Engine[]> {
  prepareEngines();
  return [
    await startOurs(processes, "Toolgate"),
    await startOurs(processes, "Toolgate, the control"),
    ...(await startRestate(processes)),
    await startDbos(processes),
  ];
}

async function startOurs(processes: Processes, label: string): Promise<Engine> {
  const { server, workspace, connect } = await startToolgate(processes, { name: label.replace(/\W+/g, "-") });
  const [caller, approver] = [connect("caller"), connect("approver-1")];
  const [sessionId, filePath] = [await openSession(caller), await createAskingFile(workspace)];
  let waits = 0;
  return {
    ...{ label, pids: [server.pid], echo: callByConnect(caller, sessionId) },
    async wait() {
      waits += 1;
      const call = { sessionId, callId: `wait_${waits}`, tool: "read", input: { filePath } };
      const { asked, completed } = await askOnce(caller, call);
      const answer = { sessionId, permissionId: await asked, reply: PermissionReply.ONCE };
      const began = performance.now();
      await Promise.all([completed, approver.connect(PermissionService.method.respondToPermission, answer)]);
      return performance.now() - began;
    },
  };
}

/** Starts a server of Restate and its handlers: calls are journalled, and with a step each has the result of one more. */
async function startRestate(processes: Processes): Promise<Engine[]> {
  const [ingress, admin, node] = [await freePort(), await freePort(), await freePort()];
  const url = (port: number) => `http://127.0.0.1:${port}`;
  const settings = {
    ...{ RESTATE_NODE_NAME: "bench", RESTATE_CLUSTER_NAME: "bench", RESTATE_DISABLE_TELEMETRY: "true" },
    ...{ RESTATE_BASE_DIR: join(processes.folder, "restate"), RESTATE_BIND_ADDRESS: `127.0.0.1:${node}` },
    ...{ RESTATE_INGRESS__BIND_ADDRESS: `127.0.0.1:${ingress}`, RESTATE_ADMIN__BIND_ADDRESS: `127.0.0.1:${admin}` },
    ...{ RESTATE_ADVERTISED_ADDRESS: url(node), RESTATE_LOG_FILTER: "warn,restate_node=info,restate_server=info" },
  };
  const variables = Object.entries(settings).map(([name, value]) => `${name}=${value}`);
  const server = await processes.run("env", [...variables, restateServer], /ready|started/i, "");
  while (!(await isHealthy(`${url(admin)}/health`))) await new Promise((resolve) => setTimeout(resolve, 100));
  const handlers = await processes.start([join(installed, "restate.mjs"), url(admin)]);
  const pids = [server.pid, handlers.pid];
  const post = createJsonClient(url(ingress));
  const [caller, approver] = [createJsonClient(handlers.url), createJsonClient(url(ingress))];
  const textOf = (call: string, text: string) => post("/engine/step", { text }, { "idempotency-key": call });
  let waits = 0;
  return [
    { label: "Restate, a handler", pids, echo: numbered(({ input }) => post("/engine/echo", input)) },
    {
      ...{ label: "Restate, a step and an idempotency key", pids },
      echo: numbered(({ callId, input }) => textOf(callId, input.text)),
      async wait() {
        waits += 1;
        const call = `wait_${waits}`;
        const result = post("/engine/wait", { call }, { "idempotency-key": call });
        const id = await caller(`/${call}`);
        const began = performance.now();
        await Promise.all([result, approver(`/restate/awakeables/${id}/resolve`, { text: "yes" })]);
        return performance.now() - began;
      },
    },
  ];
}

async function isHealthy(url: string): Promise<boolean> {
  return fetch(url).then(
    ({ ok }) => ok,
    () => false,
  );
}

/** Starts PostgreSQL, as Debian packages it, and a program with workflows of DBOS. */
async function startDbos(processes: Processes): Promise<Engine> {
  const postgres = await startPostgres(processes);
  const program = await processes.start([join(installed, "dbos.mjs"), postgres.url]);
  const [caller, asked, approver] = [1, 2, 3].map(() => createJsonClient(program.url));
  if (caller === undefined || asked === undefined || approver === undefined) throw new Error("no clients");
  let waits = 0;
  return {
    ...{ label: "DBOS on PostgreSQL, a step", pids: [program.pid, postgres.pid] },
    echo: numbered(({ callId, input }) => caller("/step", { call: callId, ...input })),
    async wait() {
      waits += 1;
      const call = `wait_${waits}`;
      const result = caller("/wait", { call });
      await asked(`/${call}`);
      const began = performance.now();
      await Promise.all([result, approver("/answer", { call, text: "yes" })]);
      return performance.now() - began;
    },
  };
}

async function startPostgres(processes: Processes): Promise<{ pid: number; url: string }> {
  const missing = "DBOS needs PostgreSQL. Install it: apt-get install -y postgresql";
  const versions = "/usr/lib/postgresql";
  const newest = existsSync(versions) ? readdirSync(versions).toSorted().at(-1) : undefined;
  if (newest === undefined) throw new Error(missing);
  const [bin, data] = [join(versions, newest, "bin"), join(processes.folder, "postgres")];
  // It refuses to run as root.
  const as = process.getuid?.() === 0 ? ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] : [];
  mkdirSync(data, { mode: 0o700 });
  if (as.length > 0) {
    chmodSync(processes.folder, 0o711);
    execFileSync("chown", ["postgres:", data]);
  }
  const command = (...args: string[]) => [...as, ...args];
  const [maker = "", ...making] = command(join(bin, "initdb"), "-D", data, "-U", "postgres", "--auth=trust");
  execFileSync(maker, making, { stdio: ["ignore", "ignore", "inherit"], cwd: "/" });
  const port = await freePort();
  const listen = ["-D", data, "-k", data, "-h", "127.0.0.1", "-p", `${port}`];
  const [program = "", ...args] = command(join(bin, "postgres"), ...listen);
  const { pid } = await processes.run(program, args, /ready to accept connections/, missing);
  return { pid, url: `postgresql://postgres@127.0.0.1:${port}/bench` };
}

/** Sends JSON; resolves to the JSON of the response, if it has some. */
function createJsonClient(url: string) {
  const exchange = createHttpClient(url);
  return async (path: string, body?: object, headers: Readonly<Record<string, string>> = {}): Promise<unknown> => {
    const { status = 0, body: text } = await exchange(path, body, { "content-type": "application/json", ...headers });
    if (status >= 300) throw new Error(`${url}${path} answered ${status}: ${text}`);
    return text === "" ? undefined : JSON.parse(text);
  };
}
