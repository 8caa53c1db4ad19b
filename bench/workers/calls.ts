import { join } from "node:path";
import { grpcNamed, openSession } from "../echoes.ts";
import { createHttp2Client } from "../http2-client.ts";
import { type Echo, measure, timesOf } from "../load.ts";
import type { Processes } from "../processes.ts";
import { median, percentile, spread, table, target } from "../report.ts";
import { startToolgate } from "../toolgate.ts";
import { startWorker, type WorkerProgram, workerPrograms, workerTokens } from "./programs.ts";

/** Size of the measurement of calls. */
export interface CallsPlan {
  readonly warmUp: number;
  readonly rounds: number;
  readonly ms: number;
}

/** A kind of call, and its samples of each round. */
interface Kind {
  readonly label: string;
  readonly pid: number;
  readonly echo: Echo;
  readonly program?: WorkerProgram;
  /** The same worker behind the relay. */
  readonly isRelayed: boolean;
  readonly p50: number[];
  /** CPU of the server per call, with one open and with 16. */
  readonly alone: number[];
  readonly busy: number[];
  readonly rate: number[];
}

const bytes = 200;
const maxRatio = 1.25;
const minRate = 1_800;

/** Measures calls of workers beside those of a local tool, and beside a relay that stores nothing, in turn. */
export async function measureCalls(
  processes: Processes,
  { warmUp, rounds, ms }: CallsPlan,
  print: (text: string) => void,
): Promise<void> {
  const kinds = await startKinds(processes);
  for (const kind of kinds) await measure(targetOf(kind), { calls: warmUp });
  for (let round = 0; round < rounds; round += 1) {
    for (const kind of kinds) {
      await measure(targetOf(kind), { ms: ms / 2 });
      const { callsPerSecond, cpuPerCall } = await measure(targetOf(kind), { ms });
      kind.rate.push(callsPerSecond);
      kind.busy.push(cpuPerCall);
      kind.alone.push((await measure(targetOf(kind), { ms }, 1)).cpuPerCall);
      kind.p50.push(percentile(await timesOf(kind.echo, ms), 0.5));
    }
    kinds.reverse();
  }
  await processes.stopAll();
  if (rounds % 2 === 1) kinds.reverse();
  print(
    `Median (min–max) of ${rounds} rounds of ${ms / 1_000} s each: an echo of ${bytes} bytes by gRPC, on SQLite. CPU is that of the server alone. The local tool is one in the service's process that is judged and recorded in two steps, like a worker's; the built-in echo is recorded in one. The relay is grpc-js, which hands each call to the same worker by the same messages and stores nothing.`,
  );
  print(
    table(
      ["", "p50 ms, 1 open", "CPU µs/call, 1 open", "CPU µs/call, 16 open", "calls/s, 16 open"],
      kinds.map(({ label, p50, alone, busy, rate }) => [
        ...[label, spread(p50, 2), spread(alone), spread(busy), spread(rate)],
      ]),
    ),
  );
  print(ratiosTable(kinds));
  print(targetsList(kinds));
}

async function startKinds(processes: Processes): Promise<Kind[]> {
  const programs = workerPrograms(processes.folder);
  const main = join(import.meta.dirname, "local-tool.ts");
  const rules = ["repeat", ...programs.map(({ tool }) => tool)].map((tool) => `${tool} = "allow"\n`).join("");
  const service = await startToolgate(processes, { name: "workers", main, rules, settings: workerTokens() });
  const relay = await processes.start([join(import.meta.dirname, "../servers/relay.ts")]);
  const [client, relayed] = [service.connect("caller"), createHttp2Client(relay.url)];
  const kindOf = async (label: string, tool: string, program?: WorkerProgram): Promise<Kind> => {
    const echo = grpcNamed(tool, bytes)(client, await openSession(client));
    return { label, pid: service.server.pid, echo, isRelayed: false, ...(program && { program }), ...noSamples() };
  };
  const kinds = [await kindOf("built-in `echo`", "echo"), await kindOf("local tool", "repeat")];
  for (const program of programs) {
    const { label, tool } = program;
    const command = program.command();
    for (const { url } of [service.server, relay]) await startWorker(processes, command, url);
    kinds.push(await kindOf(`worker in ${label}`, tool, program), {
      ...{ label: `relay, worker in ${label}`, pid: relay.pid, program, isRelayed: true, ...noSamples() },
      echo: grpcNamed(tool, bytes)(relayed, "ses_bench"),
    });
  }
  return kinds;
}

const noSamples = () => ({ p50: [], alone: [], busy: [], rate: [] }) satisfies Partial<Kind>;

const targetOf = ({ pid, echo }: Kind) => ({ pids: [pid], echo });

/** Divides the samples of a round. */
function ratios(ours: readonly number[], theirs: readonly number[] = []): number[] {
  return ours.map((value, round) => value / (theirs[round] ?? Number.NaN));
}

const kindsOf = (kinds: readonly Kind[]) => ({
  local: kinds.find(({ label }) => label === "local tool"),
  remote: kinds.filter(({ program, isRelayed }) => program && !isRelayed),
  relayOf: (tool: string | undefined) => kinds.find(({ program, isRelayed }) => isRelayed && program?.tool === tool),
});

function ratiosTable(kinds: readonly Kind[]): string {
  const { local, remote, relayOf } = kindsOf(kinds);
  const row = (kind: Kind) => {
    const relay = relayOf(kind.program?.tool);
    return [
      kind.label,
      spread(ratios(kind.alone, local?.alone), 2),
      spread(ratios(kind.busy, local?.busy), 2),
      spread(addedMs(kind, local), 2),
      spread(ratios(kind.busy, relay?.busy), 2),
      spread(ratios(kind.p50, relay?.p50), 2),
    ];
  };
  const head = [
    "",
    "CPU ÷ local, 1 open",
    "CPU ÷ local, 16 open",
    "p50 − local, ms",
    "CPU ÷ relay, 16 open",
    "p50 ÷ relay",
  ];
  return table(head, remote.map(row));
}

const addedMs = (kind: Kind, local: Kind | undefined) =>
  kind.p50.map((value, round) => value - (local?.p50[round] ?? Number.NaN));

function targetsList(kinds: readonly Kind[]): string {
  const { local, remote } = kindsOf(kinds);
  return remote
    .flatMap((kind) => {
      const { label, program, busy, rate } = kind;
      const added = median(addedMs(kind, local));
      const calls = median(rate);
      return [
        target(`${label}: CPU of a call ÷ local`, median(ratios(busy, local?.busy)), maxRatio, "×"),
        ...(program?.maxAddedMs === undefined
          ? []
          : [target(`${label}: p50 − local`, added, program.maxAddedMs, "ms")]),
        `- ${label}: ${calls.toFixed(0)} calls/s with 16 open; target ≥ ${minRate}: ${calls >= minRate ? "reached" : "not reached"}`,
      ];
    })
    .join("\n");
}
