import { createWorkers, type Workers } from "../bodies/workers/workers.ts";
import type { RemoteTools } from "../call/engine.ts";
import type { CallObserver } from "../call/observer.ts";
import type { Config } from "../config/config.ts";
import type { Logger } from "../core/logger.ts";
import type { Credentials } from "../people/credentials.ts";
import { isForeignPermission, knownPermissions } from "../policy/known-permissions.ts";
import type { Tool } from "../tool/tool.ts";
import type { Replica } from "./replica.ts";
import type { ServiceStore } from "./store.ts";

/** Composes the workers of a replica; the tools of those that were connected before are registered. */
export function startWorkers(
  { workspaces, limits }: Pick<Config, "workspaces" | "limits">,
  {
    replica: { calls, registry },
    replicaId,
    store,
    credentials,
    builtIn,
    log,
  }: {
    replica: Replica;
    replicaId: string;
    store: ServiceStore;
    credentials: Pick<Credentials, "principalWithId">;
    builtIn: readonly Tool[];
    log: Logger;
  },
): Workers {
  const closed = new Set([...knownPermissions(builtIn), ...builtIn.map(({ name }) => name), ...alwaysClosed]);
  return createWorkers({
    ...{ registry, calls, log },
    ...{ declarations: store.workerDeclarations, workerDirectory: store.workerDirectory, replicaId },
    rightsOf: (principal) => credentials.principalWithId(principal)?.worker,
    isClosed: (permission) => closed.has(permission) || isForeignPermission(permission),
    workspaces: [...workspaces.keys()],
    storeId: () => store.calls.storeId,
    verifyStoreId: () => store.calls.verifyIds(),
    beatMs: limits.runnerBeatMs,
    now: store.calls.now,
  });
}

/** Permissions of the service that no tool of this configuration may ask. */
const alwaysClosed = ["bash", "edit", "read", "list", "glob", "grep", "lsp", "webfetch", "task", "question"];

/** Returns the parts with which a replica serves calls of workers, which are composed after it. */
export function workerParts(
  workers: () => Workers,
  observer: CallObserver,
): { observer: CallObserver; remoteTools: RemoteTools } {
  return {
    observer: {
      ...observer,
      ended(end) {
        observer.ended(end);
        workers().ended(end.part);
      },
    },
    remoteTools: {
      find: (definitionId, workspace) => workers().tool(definitionId, workspace),
      isServed: (definitionId) => workers().isServed(definitionId),
      onOrphan: (call, mark) => workers().orphan(call, mark),
    },
  };
}
