import type { WorkResponse } from "../../gen/opencode/tool/v1/worker_pb.ts";
import { type Bodies, createBodies } from "../body/bodies.ts";
import { createPlans, type Plans } from "../body/plans.ts";
import type { Send } from "../body/running-body.ts";
import { openWorkspace, type Workspace } from "../tool/workspace.ts";
import { helloOf } from "./declare-tool.ts";
import { initTool, toolFor } from "./init-tool.ts";
import { type LoadedCode, loadCode } from "./load-code.ts";
import type { ServicePipes } from "./pipes.ts";
import { runPluginHook } from "./run-hook.ts";

/** State of a process after its code was loaded. */
interface Serving {
  readonly send: Send;
  readonly code: LoadedCode;
  readonly plans: Plans;
  readonly bodies: Bodies;
}

/** Loads the code that the service names, then handles its messages until its pipe ends. */
export async function serveCalls({ messages, send }: ServicePipes): Promise<void> {
  let serving: Serving | undefined;
  for await (const { message } of messages) {
    if (message.case === "load") {
      const code = await loadCode(message.value);
      const plans = createPlans({
        toolFor: (name, agent) => toolFor(code, name, agent),
        workspaceOf,
      });
      serving = { send, code, plans, bodies: createBodies(plans, send) };
      await send({ case: "hello", value: helloOf(code) });
    } else if (serving) handle(serving, message);
    else throw new Error(`the service sent ${message.case} before load`);
  }
}

/** Opens the workspace of a call. The service asks for directories outside: the sandbox hides what they are. */
async function workspaceOf({
  workspace: name,
  directory,
}: {
  workspace: string;
  directory: string;
}): Promise<Workspace> {
  const workspace = await openWorkspace(name, directory);
  return {
    ...workspace,
    async resolve(path) {
      const handle = await workspace.resolve(path);
      const asks: typeof handle.asks = (permission, metadata) =>
        handle.asks(permission, metadata).filter((ask) => ask.permission === permission);
      return { ...handle, asks };
    },
  };
}

/** Handles a message without waiting for its outcome, so that none delays another. */
function handle({ send, code, plans, bodies }: Serving, message: WorkResponse["message"]): void {
  switch (message.case) {
    case "plan":
      void plans.plan(message.value).then((value) => send({ case: "planned", value }));
      return;
    case "init":
      void initTool(code, message.value).then((value) => send({ case: "inited", value }));
      return;
    case "hook":
      void runPluginHook(code, message.value).then((value) => send({ case: "hooked", value }));
      return;
    case "start":
      void bodies.start(message.value);
      return;
    case "cancel":
      bodies.cancel(message.value);
      return;
    case "answer":
      bodies.answer(message.value);
      return;
    case "ended":
      bodies.end(message.value.assignment);
      return;
    default:
      throw new Error(`the service sent ${message.case ?? "a message"}, which this version does not know`);
  }
}
