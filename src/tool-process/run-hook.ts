import type { JsonObject, MessageInitShape } from "@bufbuild/protobuf";
import type { WorkerHook, WorkerHookedSchema } from "../../gen/opencode/tool/v1/worker_pb.ts";
import { messageOf } from "../body/message-of.ts";
import { plainJson } from "../tool/plain-json.ts";
import { within } from "../tool/within.ts";
import type { LoadedCode } from "./load-code.ts";

/** Time that a hook may take. */
const hookMs = 5_000;

/** Runs a hook and returns the output that it changed; the service checks that it is usable. */
export async function runPluginHook(
  { plugins }: LoadedCode,
  { hookId, plugin, name, input, output }: WorkerHook,
): Promise<MessageInitShape<typeof WorkerHookedSchema>> {
  try {
    const hook = plugins[plugin]?.hooks[name];
    if (!hook) throw new Error(`plugin ${plugin} of this process has no hook ${name}`);
    const changed: JsonObject = output ?? {};
    await within(hookMs, Promise.resolve(hook(input ?? {}, changed)));
    return { hookId, outcome: { case: "output", value: plainJson(changed) } };
  } catch (error) {
    return { hookId, outcome: { case: "problem", value: messageOf(error) } };
  }
}
