import { join } from "node:path";
import { grpcNamed, openSession } from "../echoes.ts";
import type { Goal } from "../goals.ts";
import { createHttp2Client } from "../http2-client.ts";
import { type Echo, measure, timesOf } from "../load.ts";
import type { Processes } from "../processes.ts";
import { percentile, spread, table } from "../report.ts";
import { type RoundsPlan, ratios } from "../rounds.ts";
import { startToolgate } from "../toolgate.ts";
import { startWorker, type WorkerProgram, workerPrograms, workerTokens } from "./programs.ts";

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

/** Measures calls of workers beside those of a local tool, and beside a relay that stores nothing, in turn. */
export async function measureCalls(
  processes: Processes,
  { warmUp, rounds, ms }: RoundsPlan,
  print: (text: string) => void,
  languages: readonly string[] = ["Go", "Python", "TypeScript"],
): Promise<Goal[]> {
  const kinds = await startKinds(processes, languages);
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
  const { local, control, remote } = kindsOf(kinds);
  return remote.map(({ label, busy }) => ({
    ...{ figure: `${label} ÷ local tool, CPU of a call`, limit: 1.25, unit: "×", values: ratios(busy, local.busy) },
    control: ratios(control.busy, local.busy),
  }));
}

async function startKinds(processes: Processes, languages: readonly string[]): Promise<Kind[]> {
  const programs = workerPrograms(processes.folder).filter(({ label }) => languages.includes(label));
  const main = join(import.meta.dirname, "local-tool.ts");
  const rules = ["repeat", ...programs.map(({ tool }) => tool)].map((tool) => `${tool} = "allow"\n`).join("");
  const service = await startToolgate(processes, { name: "workers", main, rules, settings: workerTokens() });
  const relay = await processes.start([join(import.meta.dirname, "../servers/relay.ts")]);
  const [client, relayed] = [service.connect("caller"), createHttp2Client(relay.url)];
  const kindOf = async (label: string, tool: string, program?: WorkerProgram): Promise<Kind> => {
    const echo = grpcNamed(tool, bytes)(client, await openSession(client));
    return { label, pid: service.server.pid, echo, isRelayed: false, ...(program && { program }), ...noSamples() };
  };
  const kinds = [await kindOf("built-in `echo`", "echo")];
  for (const label of [localTool, localControl]) kinds.push(await kindOf(label, "repeat"));
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

const [localTool, localControl] = ["local tool", "local tool, the control"];

function kindsOf(kinds: readonly Kind[]) {
  const named = (wanted: string) => kinds.find(({ label }) => label === wanted) ?? { ...noSamples() };
  return {
    ...{ local: named(localTool), control: named(localControl) },
    remote: kinds.filter(({ program, isRelayed }) => program && !isRelayed),
    relayOf: (tool: string | undefined) =>
      kinds.find(({ program, isRelayed }) => isRelayed && program?.tool === tool) ?? { ...noSamples() },
  };
}

function ratiosTable(kinds: readonly Kind[]): string {
  const { local, remote, relayOf } = kindsOf(kinds);
  const row = (kind: Kind) => {
    const relay = relayOf(kind.program?.tool);
    return [
      kind.label,
      spread(ratios(kind.alone, local.alone), 2),
      spread(ratios(kind.busy, local.busy), 2),
      spread(
        kind.p50.map((value, round) => value - (local.p50[round] ?? Number.NaN)),
        2,
      ),
      spread(ratios(kind.busy, relay.busy), 2),
      spread(ratios(kind.p50, relay.p50), 2),
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
