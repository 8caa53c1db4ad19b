import { type Enforcement, EnforcementState } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { agentFacts } from "../../agents/hooks/agent-facts.ts";
import type { Screen } from "../terminal/screen.ts";
import { terminalLine } from "../terminal/terminal-safe.ts";
import { momentOf } from "../view/words.ts";
import type { CanaryResult } from "./record.ts";

/** Returns the hold of approvals in a word: enforced, advisory or unknown. */
export function enforcementWord(enforcement: Enforcement | undefined): "enforced" | "advisory" | "unknown" {
  if (enforcement === undefined) return "unknown";
  return enforcement.state === EnforcementState.ENFORCED ? "enforced" : "advisory";
}

/** Describes the hold of approvals over an agent. */
export function enforcementLine(enforcement: Enforcement | undefined, paint: Screen["paint"]["out"]): string {
  const word = enforcementWord(enforcement);
  const reason = enforcement?.reason ? `: ${terminalLine(enforcement.reason)}` : "";
  return `approvals are ${paint(word === "enforced" ? "green" : "yellow", word)}${reason}`;
}

/** Describes what the agent does where its hook itself fails, which only a test with real faults can find out. */
export function faultLine(kind: string, paint: Screen["paint"]["out"]): string[] {
  const facts = agentFacts[kind];
  if (facts === undefined) return [];
  const { name, version, runsAfter } = facts;
  const isOpen = runsAfter.length > 0;
  const fault = isOpen ? new Intl.ListFormat("en", { type: "disjunction" }).format(runsAfter) : "fails";
  const outcome = isOpen ? paint("yellow", "decides by its own rules, which may run the tool") : "runs no tool";
  return [`if our hook itself ${fault}, ${name} ${version} ${outcome}`];
}

/** Describes the table of native tools. */
export function canaryLines(canary: CanaryResult | undefined, paint: Screen["paint"]["out"]): string[] {
  if (canary === undefined) return [`native tools  ${paint("yellow", "not verified")}: the agent was not run`];
  const groups = Map.groupBy(canary.rows, ({ result }) => result);
  const rows = [...groups].flatMap(([result, rows]) => {
    const colour = result === "asks" ? "green" : result === "runs unasked" ? "red" : "dim";
    const names = rows.filter(({ reason }) => reason === undefined).map(({ tool }) => tool);
    const reasons = rows.flatMap(({ tool, reason }) => (reason === undefined ? [] : [`${tool}: ${reason}`]));
    const texts = [...(names.length > 0 ? [names.join(", ")] : []), ...reasons];
    return texts.map((text) => `  ${paint(colour, result.padEnd(12))}  ${terminalLine(text)}`);
  });
  const problem =
    canary.problem === "" ? [] : [`  ${paint("yellow", "problem")}       ${terminalLine(canary.problem)}`];
  return [
    `native tools of ${terminalLine(canary.program)}, checked at ${momentOf(canary.checked)}`,
    ...rows,
    ...problem,
  ];
}
