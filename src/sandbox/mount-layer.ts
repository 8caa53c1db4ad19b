import { isWithin } from "./is-within.ts";
import type { LayerShare } from "./layers.ts";
import type { MountPlan } from "./mount-plan.ts";
import type { PlanRoot } from "./plan-input.ts";

/** Turns a plan for these roots into mounts. `maskFile` is mounted over masked files, `cwd` exists also where a root is closed. */
export function mountArgs(
  { closed, shown, sealed, writable, pins, readOnly, absent, emptied, masked }: MountPlan,
  { cwd, maskFile, roots: planned }: { cwd: string; maskFile: string; roots: readonly PlanRoot[] },
): NonNullable<LayerShare["args"]> {
  const bound = (paths: readonly string[], option: string) => paths.flatMap((path) => [option, path, path]);
  const isSealed = (path: string) => !isInWritable(planned, path) || sealed.some((root) => isWithin(path, root.path));
  const roots = closed.flatMap(({ path }) => ["--tmpfs", path, ...directoriesOf(cwd, path)]);
  return {
    directories: [
      ...roots,
      ...shown.flatMap((path) => [isSealed(path) ? "--ro-bind" : "--bind", path, path]),
      ...closed.flatMap(({ path }) => ["--remount-ro", path]),
      ...bound(
        sealed.map(({ path }) => path).filter((path) => !closed.some((root) => root.path === path)),
        "--ro-bind",
      ),
      ...bound(writable, "--bind"),
    ],
    // A pin makes its directory writable, which it is only outside of sealed roots.
    // Any of them may have been removed since the plan was made.
    pins: bound(
      pins.filter((path) => !isSealed(path) || writable.some((open) => isWithin(path, open))),
      "--bind-try",
    ),
    readOnly: bound(
      [...readOnly, ...absent].map(({ path }) => path),
      "--ro-bind-try",
    ),
    masks: [
      ...emptied.flatMap(({ path }) => ["--perms", "0555", "--tmpfs", path, "--remount-ro", path]),
      ...masked.flatMap(({ path }) => ["--ro-bind", maskFile, path]),
    ],
  };
}

/** Checks if the innermost of the roots that hold a path is writable. */
function isInWritable(roots: readonly PlanRoot[], path: string): boolean {
  const holding = roots.filter(({ absolute }) => isWithin(path, absolute));
  return holding.reduce((one, other) => (other.absolute.length > one.absolute.length ? other : one)).isWritable;
}

/** Makes a working directory below a closed root, which would not exist otherwise. */
const directoriesOf = (cwd: string, root: string) => (cwd.startsWith(`${root}/`) ? ["--dir", cwd] : []);
