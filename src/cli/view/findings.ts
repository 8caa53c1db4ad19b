import type { ServerConnection } from "../connection/connection.ts";
import { exitCodes } from "../failure/command-error.ts";
import { commandFailure } from "../failure/failure.ts";
import type { Paint, Screen } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";

/** The result of one check. A warning weakens what the service promises; a failure keeps it from doing its work. */
export interface CheckFinding {
  check: string;
  state: "ok" | "warning" | "failed";
  fact: string;
  /** The next step; empty if there is none, or the fact names it. */
  next: string;
}

const findingOf =
  (state: CheckFinding["state"]) =>
  (check: string, fact: string, next = ""): CheckFinding => ({ check, state, fact, next });

export const ok = findingOf("ok");
export const warning = findingOf("warning");
export const failedCheck = findingOf("failed");

/** Runs checks, one after the other. The error of one is its finding. */
export async function* findingsOf(
  server: ServerConnection,
  checks: Record<string, () => readonly CheckFinding[] | Promise<readonly CheckFinding[]>>,
): AsyncGenerator<CheckFinding> {
  for (const [check, find] of Object.entries(checks)) {
    try {
      yield* await find();
    } catch (error) {
      const { message, next } = commandFailure(error, server);
      yield failedCheck(check, message, next);
    }
  }
}

/** Writes findings as they come; returns the exit code. */
export async function writeFindings(
  findings: AsyncIterable<CheckFinding>,
  screen: Screen,
): Promise<number | undefined> {
  let hasFailed = false;
  for await (const finding of findings) {
    hasFailed ||= finding.state === "failed";
    screen.result(finding, (paint) => findingLines(finding, paint));
  }
  return hasFailed ? exitCodes.failed : undefined;
}

/** Writes a finding for people. */
function findingLines({ check, state, fact, next }: CheckFinding, paint: Paint): string[] {
  const color = ({ ok: "green", warning: "yellow", failed: "red" } as const)[state];
  return [
    `${paint(color, state.padEnd(7))}  ${check.padEnd(11)}  ${terminalLine(fact)}`,
    ...(next === "" ? [] : [`${" ".repeat(22)}${paint("dim", "next:")} ${terminalLine(next)}`]),
  ];
}
