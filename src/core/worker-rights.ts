import type { Role, WorkerRights } from "./principal.ts";

/** Permissions of built-in tools that a token of a worker may name: their patterns are text, and paths in them are judged as text. */
export const lentPermissions: readonly string[] = "read edit list glob grep webfetch external_directory".split(" ");

/** Permissions that only the service asks. */
const ownPermissions: readonly string[] = ["bash", "task", "question", "skill", "doom_loop"];

/** Finds out why rights are no valid ones of a worker; undefined if they are, or if they are those of other roles. */
export function workerRightsProblem({
  roles,
  worker,
}: {
  roles: readonly Role[];
  worker?: WorkerRights | undefined;
}): { field: "roles" | "worker" | "tools" | "permissions"; message: string } | undefined {
  if (roles.includes("relay") && roles.length > 1)
    return {
      field: "roles",
      message: `the role relay excludes every other role: it answers on behalf of persons and does nothing else; create another token`,
    };
  if (!roles.includes("worker")) {
    if (worker === undefined) return undefined;
    return { field: "worker", message: "tools, permissions, calls, idempotent and pin are only for the role worker" };
  }
  const others = roles.filter((role) => role !== "worker");
  if (others.length > 0)
    return {
      field: "roles",
      message: `the role worker excludes ${others.join(", ")}: the principal that runs a tool must neither call nor approve it; create another token`,
    };
  if (worker === undefined || worker.tools.length === 0)
    return { field: "tools", message: "the role worker needs the names of the tools that it may bring, such as ci_*" };
  const own = worker.permissions.find((permission) => ownPermissions.includes(permission));
  if (own !== undefined)
    return {
      field: "permissions",
      message: `no tool of a worker may ask the permission "${own}": leave it out, and let the tool ask under its own name`,
    };
  return undefined;
}
