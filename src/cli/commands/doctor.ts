import { get as getPlain } from "node:http";
import { get as getSecure } from "node:https";
import { text } from "node:stream/consumers";
import { TLSSocket } from "node:tls";
import type { Command } from "commander";
import type { Connector } from "../../../gen/opencode/tool/v1/agent_service_pb.ts";
import { SourceAcceptance, SourceState, SourceStateSchema } from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import {
  EnforcementState,
  type GetServerInfoResponse,
  SandboxState,
} from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { ToolRegistration } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { isLoopback } from "../../client/find-token.ts";
import type { Certificates } from "../../client/verified-socket.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { channelState } from "../../view/notices.ts";
import { countOf } from "../../view/quantities.ts";
import { workerState } from "../../view/workers.ts";
import { withServer } from "../command.ts";
import { allConnectors } from "../connect/check-connector.ts";
import { findServerToken, type ServerConnection } from "../connection/connection.ts";
import { readCertificates } from "../connection/server-address.ts";
import type { CliContext } from "../context.ts";
import { type CheckFinding, failedCheck, findingsOf, ok, warning, writeFindings } from "../view/findings.ts";
import { durationOf, momentOf, wordOf } from "../view/words.ts";
import { allSources } from "./sources.ts";

/** Defines `toolgate doctor`. */
export function defineDoctor(command: Command, context: CliContext): void {
  command
    .description(
      "Check a running service: readiness, certificate, clock, store, sandbox, approvals, agents, channels and sources of tools, each problem with its next step. Ends with 1 if a check failed",
    )
    .action(() =>
      withServer(context, command, "approver", async (server, screen, options) => {
        const { env } = context.io;
        const { value } = findServerToken("approver", options, env);
        const get = getFrom(server.url, readCertificates(options, env), value);
        return await writeFindings(examine(server, get), screen);
      }),
    );
}

/** Checks a service, one thing after the other. The first request throws if the service is not reachable. */
async function* examine(server: ServerConnection, get: Get): AsyncGenerator<CheckFinding> {
  const info = await server.tools.getServerInfo({});
  const { version, principal, roles, person } = info;
  const name = person?.name || principal;
  yield ok("service", `${version} at ${server.url}; you are ${name}: ${roles.join(", ")}`);
  yield* findingsOf(server, {
    readiness: async () => readinessFindings(await get("/readyz"), server.url),
    counters: async () => counterFindings(await get("/metrics")),
    audit: async () => exportFindings(await get("/metrics")),
    store: () => storeFindings(info),
    sandbox: () => sandboxFindings(info),
    approvals: () => approvalFindings(info),
    agents: async () => (await allConnectors(server)).map(connectorFinding),
    channels: () => channelFindings(server),
    sources: () => sourceFindings(server),
    workers: () => workerFindings(server),
  });
}

/** The answer to a GET, with the clock and certificate of its sender. */
interface Answer {
  status: number;
  text: string;
  /** The clock of the service and that of this machine, in ms since the epoch. */
  clock: { service: number; here: number };
  /** End of the certificate, in ms since the epoch; undefined without TLS. */
  certificateEnds: number | undefined;
}

/** Reads a path that no rpc serves. */
type Get = (path: string) => Promise<Answer>;

function getFrom(url: string, certificates: Certificates, token: string | undefined): Get {
  const send = url.startsWith("https:") ? getSecure : getPlain;
  const headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
  return (path) =>
    new Promise((resolve, reject) => {
      const request = send(url + path, { ...certificates, headers, timeout: 10_000, agent: false }, (response) => {
        const { socket, statusCode: status = 0 } = response;
        const clock = { service: Date.parse(response.headers.date ?? ""), here: Date.now() };
        const end = socket instanceof TLSSocket ? socket.getPeerCertificate().valid_to : undefined;
        const certificateEnds = end === undefined ? undefined : Date.parse(end);
        text(response).then((body) => resolve({ status, text: body, clock, certificateEnds }), reject);
      });
      request.on("timeout", () => request.destroy(new Error(`${url}${path} did not answer within 10 s`)));
      request.on("error", reject);
    });
}

function readinessFindings({ status, text, clock, certificateEnds }: Answer, url: string): CheckFinding[] {
  const [problem = "", ...rest] = text.trimEnd().split("\n");
  return [
    status === 200 ? ok("readiness", "takes calls and answers") : failedCheck("readiness", problem),
    ...rest.map((line) => warning("readiness", line.replace(/^warning: /, ""))),
    certificateFinding(certificateEnds, url, clock.here),
    clockFinding(clock),
  ];
}

function certificateFinding(ends: number | undefined, url: string, now: number): CheckFinding {
  if (ends === undefined) {
    if (isLoopback(url)) return ok("certificate", "not needed on loopback");
    return warning(
      "certificate",
      "tokens and answers cross the network in clear",
      "serve with --tls-cert and --tls-key, or behind a proxy with TLS",
    );
  }
  const fact = `valid until ${momentOf(ends)}`;
  if (ends - now > 14 * dayMs) return ok("certificate", fact);
  return warning("certificate", fact, "renew it, and restart the service with the new one");
}

const dayMs = 86_400_000;

/** Compares the clocks. The header has whole seconds, so differences of a second mean nothing. */
export function clockFinding({ service, here }: Answer["clock"]): CheckFinding {
  if (Number.isNaN(service)) return warning("clock", "the service does not send its time");
  const difference = Math.abs(service - here);
  if (difference <= 5_000) return ok("clock", "agrees with that of this machine");
  const side = service > here ? "ahead of" : "behind";
  return warning(
    "clock",
    `the service is ${durationOf(difference)} ${side} this machine`,
    "synchronize both clocks (timedatectl set-ntp true): deadlines, sign-ins and tokens of issuers depend on them",
  );
}

const counters: Readonly<Record<string, { what: string; next: string }>> = {
  toolgate_connections_refused_total: {
    what: "connections over a cap were refused",
    next: "raise connections under [limits], or the limit of open files (LimitNOFILE)",
  },
  toolgate_log_dropped_total: {
    what: "log lines were dropped",
    next: "free space where <data>/log lies, and read stderr of the service",
  },
  toolgate_store_errors_total: { what: "steps of the store failed", next: "the log says which, and why" },
  toolgate_changed_inputs_total: {
    what: "calls ran with another input than the approved one",
    next: "toolgate audit export, and look at the agent that ran them",
  },
};

function counterFindings({ status, text }: Answer): CheckFinding[] {
  if (status !== 200) return [failedCheck("counters", `/metrics answers ${status}: ${text.trim()}`)];
  const found = Object.entries(counters).flatMap(([name, { what, next }]) => {
    const count = sumOf(name, text);
    return count === 0 ? [] : [warning("counters", `${count} ${what} since the start`, next)];
  });
  if (found.length > 0) return found;
  const [open, running] = [sumOf("toolgate_open_requests", text), sumOf("toolgate_running_calls", text)];
  return [
    ok("counters", `${countOf(open, "open request")}, ${countOf(running, "running call")}, nothing refused or lost`),
  ];
}

/** Reports on the export of the audit, if there is one. */
function exportFindings({ text }: Answer): CheckFinding[] {
  if (!text.includes("toolgate_audit_exported_total")) return [];
  const lost = sumOf("toolgate_audit_export_lost_total", text);
  const lagMs = sumOf("toolgate_audit_export_lag_seconds", text) * 1_000;
  const next = "the log says what the receiver answers; correct its entry of [audit_export], or raise audit_max_days";
  return [
    ...(lost > 0 ? [warning("audit", `${countOf(lost, "record")} removed before a receiver accepted them`, next)] : []),
    lagMs > 300_000
      ? warning("audit", `the export is ${durationOf(lagMs)} behind`, next)
      : ok("audit", `exported, ${durationOf(lagMs)} behind`),
  ];
}

/** Adds up the series of a metric. */
function sumOf(name: string, text: string): number {
  const series = text.matchAll(new RegExp(`^${name}(?:\\{.*\\})? (\\S+)$`, "gm"));
  return series.reduce((sum, [, value]) => sum + Number(value), 0);
}

function storeFindings({ storeId, format, storeDetails }: GetServerInfoResponse): CheckFinding[] {
  const { copies = 0, requiredCopies = 0, warnings = [] } = storeDetails ?? {};
  const kept = requiredCopies > 0 ? `, copies connected: ${copies}, required: ${requiredCopies}` : "";
  return [ok("store", `${storeId}, format ${format}${kept}`), ...warnings.map((each) => warning("store", each))];
}

const wholeWall = ["disk", "processes", "files", "network", "system_calls", "limits"];

function sandboxFindings({ sandbox, sandboxProblem, sandboxDetails, preset }: GetServerInfoResponse): CheckFinding[] {
  const { layers = [], warnings = [] } = sandboxDetails ?? {};
  const missing = wholeWall.filter((layer) => !layers.includes(layer));
  return [
    sandbox === SandboxState.UNAVAILABLE
      ? failedCheck("sandbox", `commands cannot run: ${sandboxProblem}`)
      : sandbox === SandboxState.OFF
        ? warning("sandbox", "off: commands have the rights of the service", 'remove profile = "off" from [sandbox]')
        : missing.length > 0
          ? warning("sandbox", `without ${missing.join(", ")}; in force: ${layers.join(", ")}`)
          : ok("sandbox", `in force: ${layers.join(", ")}`),
    ...warnings.map((each) => warning("sandbox", each)),
    ...(preset === undefined
      ? []
      : [preset.problem === "" ? ok("preset", preset.name) : warning("preset", `${preset.name}: ${preset.problem}`)]),
  ];
}

function approvalFindings({ enforcement }: GetServerInfoResponse): CheckFinding[] {
  const isEnforced = enforcement?.state === EnforcementState.ENFORCED;
  if (isEnforced) return [ok("approvals", "enforced for programs of your user on this machine")];
  return [warning("approvals", `advisory: ${enforcement?.reason ?? ""}`)];
}

function connectorFinding({ kind, place, enforcement }: Connector): CheckFinding {
  const name = `${kind} at ${place}`;
  if (enforcement?.state === EnforcementState.ENFORCED) return ok("agents", `${name}: enforced`);
  return warning(
    "agents",
    `${name}: advisory: ${enforcement?.reason ?? ""}`,
    "run `toolgate connect --check` there to see what asks",
  );
}

async function channelFindings({ channels: service }: ServerConnection): Promise<CheckFinding[]> {
  const { channels } = await service.listChannels({});
  const findings = channels.map((channel): CheckFinding => {
    const { name, lastFailed, lastFailure } = channel;
    const state = channelState(channel);
    if (state === "working" || state === "not used yet") return ok("channels", `${name}: ${state}`);
    const fact = `${name}: ${state}, the last attempt failed ${momentOf(lastFailed)}: ${lastFailure}`;
    return warning("channels", fact, `\`toolgate channel test ${name}\` says what to change`);
  });
  if (findings.some(({ state }) => state === "ok")) return findings;
  if (channels.length === 0) return [ok("channels", "none: requests wait for people who look")];
  return [
    ...findings,
    failedCheck("channels", "no channel is reachable: people learn of no request", "mend one of these"),
  ];
}

const working = new Set<SourceState>([SourceState.READY, SourceState.IDLE, SourceState.CONNECTING]);
const unaccepted = new Set<SourceAcceptance>([SourceAcceptance.NEW, SourceAcceptance.CHANGED]);

async function sourceFindings({ sources }: ServerConnection): Promise<CheckFinding[]> {
  return (await allSources(sources)).map(({ name, state, problem, tools }) => {
    if (!working.has(state))
      return failedCheck(
        "sources",
        `${name}: ${wordOf(SourceStateSchema, state)}: ${problem}`,
        `toolgate sources ${name}`,
      );
    const { length } = tools.filter(({ acceptance }) => unaccepted.has(acceptance));
    if (length === 0) return ok("sources", `${name}: ${countOf(tools.length, "tool")}`);
    const next = `toolgate sources ${name}, then toolgate upstream accept ${name}`;
    return warning("sources", `${name}: ${countOf(length, "tool")} not accepted`, next);
  });
}

async function workerFindings({ workers: service }: ServerConnection): Promise<CheckFinding[]> {
  const pages = await Array.fromAsync(pagesOf((page) => service.listWorkers(page)));
  return pages
    .flatMap(({ workers }) => workers)
    .map((worker) => {
      const name = `${worker.worker} ${worker.instanceId}`;
      const refused = worker.tools.filter(({ registration }) => registration !== ToolRegistration.REGISTERED);
      const [first] = refused;
      if (first)
        return failedCheck("workers", `${name}: ${first.name} is not offered: ${first.message}`, "toolgate workers");
      const state = workerState(worker);
      if (state === "away") return warning("workers", `${name}: away since ${momentOf(worker.seen)}`, "start it again");
      return ok("workers", `${name}: ${state}`);
    });
}
