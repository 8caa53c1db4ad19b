import { setTimeout as delay } from "node:timers/promises";
import { hostOf } from "./target.ts";

/** The rules by which a command reaches the network. */
export interface NetworkRules {
  /** Evaluates rules for a URL; `leadsTo` is an IP address of its host. */
  judge(url: string, leadsTo?: string): { action: "allow" | "ask" | "deny"; reason: string };
  /** Asks a person if the command may reach a host; throws if it may not. Absent: no one is asked. */
  ask?(url: string): Promise<void>;
  /** Reports a refused request, for the result of the command. */
  refused(url: string, reason: string): void;
}

/** A command in a network, with the hosts about which a person was asked. */
export interface ConnectedCommand {
  readonly rules: NetworkRules;
  readonly asked: Map<string, Promise<void>>;
}

/** Maximum time for which a connection waits for a person. */
export const maxHoldMs = 60_000;

/**
 * Judges a request of a network; returns the refusal, undefined if it may go on. Which of the commands sent it is unknown, so all
 * of them must be allowed to.
 */
export async function judgeRequest(
  commands: readonly ConnectedCommand[],
  url: string,
  addresses: readonly string[] | undefined,
  holdMs: number,
): Promise<string | undefined> {
  const refusal = await refusalOf(commands, url, addresses, holdMs);
  if (refusal !== undefined) for (const { rules } of commands) rules.refused(url, refusal);
  return refusal;
}

async function refusalOf(
  commands: readonly ConnectedCommand[],
  url: string,
  addresses: readonly string[] | undefined,
  holdMs: number,
): Promise<string | undefined> {
  if (commands.length === 0)
    return `${url} is refused: no command of the session is running, by whose rules it could be judged`;
  if (addresses) {
    for (const { rules } of commands)
      for (const address of addresses) {
        const { action, reason } = rules.judge(url, address);
        if (action === "deny") return `${url} leads to ${address}, which is not allowed: ${reason}`;
      }
    return undefined;
  }
  const judged = commands.map((command) => ({ command, ...command.rules.judge(url) }));
  const denied = judged.find(({ action }) => action === "deny");
  if (denied) return `${url} is not allowed: ${denied.reason}`;
  for (const { command } of judged.filter(({ action }) => action === "ask")) {
    const refusal = await hold(command, url, holdMs);
    if (refusal !== undefined) return refusal;
  }
  return undefined;
}

/** Holds a request while a person is asked about its host, once for each command. */
async function hold({ rules, asked }: ConnectedCommand, url: string, holdMs: number): Promise<string | undefined> {
  const host = hostOf(url);
  if (!rules.ask)
    return `no rule allows ${host}, and no one is asked. Add "${host}*" = "allow" under [permission.webfetch]`;
  const answer = asked.get(host) ?? rules.ask(host);
  asked.set(host, answer);
  const timer = new AbortController();
  const late = delay(holdMs, `no one has allowed ${host} within ${holdMs / 1_000} s`, { signal: timer.signal });
  try {
    return await Promise.race([answer.then(() => undefined), late]);
  } catch (error) {
    return `${host} was refused: ${error instanceof Error ? error.message : String(error)}`;
  } finally {
    timer.abort();
    late.catch(() => undefined);
  }
}
