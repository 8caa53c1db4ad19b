import { randomBytes } from "node:crypto";
import type { DecisionRecord } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { encodeDecision } from "../audit.ts";
import type { Doorbell } from "./doorbell.ts";
import type { Keys } from "./keys.ts";
import type { Link, StepBytes, StepKeys } from "./link.ts";
import { list, number, type Reply, text } from "./reply.ts";
import type { ScriptName } from "./scripts.ts";

/** Runs a transition in a tree: one step, of which this replica hears at once and the others by message. */
export type RunStep = (
  name: ScriptName,
  root: string,
  keys: StepKeys,
  values?: object,
  bytes?: StepBytes,
  decisions?: readonly DecisionRecord[],
) => Promise<Reply>;

/** Gives each step an operation id, so that it is done once however often it is sent. */
export function createSteps({ link, keys, doorbell }: { link: Link; keys: Keys; doorbell: Doorbell }): RunStep {
  const life = randomBytes(12).toString("base64url");
  let count = 0;
  return async (name, root, names, values, bytes, decisions = []) => {
    const tree = keys.tree(root);
    const op = tree.operation(`${life}-${(count++).toString(36)}`);
    const encoded = decisions.map(encodeDecision);
    const decided = encoded.map(({ sha256 }) => sha256);
    const contents = Object.fromEntries(encoded.map(({ content }, i) => [`decision ${i + 1}`, content]));
    const all = { op, tree: tree.tree, ...(decided.length > 0 && { audit: tree.audit }), ...names };
    const [result, news] = list(await link.run(name, all, { ...values, decided }, { ...bytes, ...contents }));
    const told = list(news);
    for (let index = 0; index < told.length; index += 2) doorbell.ring(text(told[index]), number(told[index + 1]));
    return result ?? null;
  };
}
