import { randomBytes } from "node:crypto";
import type { DecisionRecord } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { encodeDecision } from "../audit.ts";
import type { RedisDoorbell } from "./doorbell.ts";
import type { Keys } from "./keys.ts";
import type { Link, StepBytes, StepKeys } from "./link.ts";
import type { RedisLog } from "./log.ts";
import { number, type Reply, replyList, text } from "./reply.ts";
import type { StepName } from "./scripts.ts";

/** Runs a transition in a tree: one step, of which this replica hears at once and the others by message. */
export type RunStep = (
  name: StepName,
  root: string,
  keys: StepKeys,
  values?: object,
  bytes?: StepBytes,
  decisions?: readonly DecisionRecord[],
) => Promise<Reply>;

/** Gives each step an operation id, so that it is done once however often it is sent. */
export function createSteps(options: { link: Link; keys: Keys; doorbell: RedisDoorbell; log: RedisLog }): RunStep {
  const { link, keys, doorbell, log } = options;
  const life = randomBytes(12).toString("base64url");
  let count = 0;

  /** Whether somebody here wants to know what the step adds to logs. */
  const isHeard = (names: StepKeys) =>
    Object.keys(names).some((name) => name.startsWith("session ") && doorbell.isHeard(name.slice("session ".length)));

  return async (name, root, names, values, given, decisions = []) => {
    const tree = keys.tree(root);
    const op = tree.operation(`${life}-${(count++).toString(36)}`);
    const encoded = decisions.map(encodeDecision);
    const decided = encoded.map(({ sha256 }) => sha256);
    const contents = Object.fromEntries(encoded.map(({ content }, i) => [`decision ${i + 1}`, content]));
    const all = { op, tree: tree.tree, ...(decided.length > 0 && { audit: tree.audit }), ...names };
    const told = { ...values, decided, ...(isHeard(names) && { echo: maxEchoBytes }) };
    const [result, news, time, events] = replyList(await link.run(name, all, told, { ...given, ...contents }));
    log.remember(time, replyList(events));
    const rung = replyList(news);
    for (let index = 0; index < rung.length; index += 2) doorbell.ring(text(rung[index]), number(rung[index + 1]));
    return result ?? null;
  };
}

/** What is longer is read from the log, if somebody wants it. */
const maxEchoBytes = 64 * 1024;
