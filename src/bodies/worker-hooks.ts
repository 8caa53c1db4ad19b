import type { JsonObject } from "@bufbuild/protobuf";
import type { WorkerPlugin } from "../../gen/opencode/tool/v1/worker_pb.ts";
import { type Hooks, isHookName } from "../tool/hooks.ts";
import type { WorkerHost } from "./worker-tool.ts";

/** Makes the hooks of a plugin that runs in a process, by its index there. A hook whose process does not answer fails. */
export function workerHooks({ hooks }: WorkerPlugin, index: number, { use }: Pick<WorkerHost, "use">): Hooks {
  const made: Hooks = {};
  for (const name of hooks.filter(isHookName)) {
    Object.assign(made, {
      [name]: async (input: object, output: object) => {
        const changed = await use((connection) => connection.hook(index, name, plain(input), plain(output)));
        for (const key of Object.keys(output)) Reflect.deleteProperty(output, key);
        Object.assign(output, changed);
      },
    });
  }
  return made;
}

/** Copies a value as JSON: messages hold nothing else. */
const plain = (value: object): JsonObject => JSON.parse(JSON.stringify(value));
