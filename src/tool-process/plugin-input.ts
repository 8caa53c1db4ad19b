import type { WorkerProject } from "../../gen/opencode/tool/v1/worker_pb.ts";
import { createShell } from "./shell.ts";

/** Argument of a plugin that is a function, with the field names of opencode. */
export interface PluginArgument {
  directory: string;
  worktree: string;
  project: { id: string; worktree: string; vcs?: "git"; time: { created: number } };
  client: object;
  serverUrl: URL;
  $: unknown;
}

/** Makes the argument of a plugin. */
export function pluginInput({ directory, worktree, id }: WorkerProject): PluginArgument {
  return {
    ...{ directory, worktree },
    project: { id, worktree, time: { created: Date.now() } },
    client: clientPart(["client"]),
    // No opencode server exists; requests to this address fail at once.
    serverUrl: new URL("http://opencode.invalid"),
    $: shellOf(),
  };
}

/** Bun has the shell of the same name; Node gets the part of it that plugins use. */
function shellOf(): unknown {
  const bun: unknown = Reflect.get(globalThis, "Bun");
  return typeof bun === "object" && bun !== null ? Reflect.get(bun, "$") : createShell();
}

/** Methods of opencode's client that mean something here: what they show goes to the log. */
const logged: Readonly<Record<string, true>> = {
  "client.app.log": true,
  "client.tui.showToast": true,
};

/** Returns a part of opencode's client. A call of any method that means nothing here is refused by name. */
function clientPart(path: readonly string[]): object {
  const name = path.join(".");
  return new Proxy(() => undefined, {
    // Promises and inspection look for these.
    get: (_target, key) =>
      typeof key === "symbol" || key === "then" || key === "toJSON" ? undefined : clientPart([...path, key]),
    async apply(_target, _this, [request]: unknown[]) {
      if (!logged[name])
        throw new Error(
          `${name}() of opencode is not available in Toolgate: there is no opencode server behind a plugin`,
        );
      console.error(`${name}: ${logLine(request)}`);
      return { data: true, error: undefined };
    },
  });
}

/** Returns what a request to the log shows, in one line. */
function logLine(request: unknown): string {
  const body: unknown = typeof request === "object" && request !== null && "body" in request ? request.body : request;
  return JSON.stringify(body) ?? "";
}
