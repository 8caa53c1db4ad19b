import { isWithin } from "./is-within.ts";
import type { LayerShare } from "./layers.ts";
import type { MountPlan } from "./mount-plan.ts";

/** Turns a plan into mounts. `maskFile` is mounted over masked files, `cwd` exists also where a root is closed. */
export function mountArgs(
  { closed, shown, sealed, writable, pins, readOnly, emptied, masked }: MountPlan,
  { cwd, maskFile, isWritable }: { cwd: string; maskFile: string; isWritable: boolean },
): NonNullable<LayerShare["args"]> {
  const isSealed = sealed.length > 0 || !isWritable;
  const bound = (paths: readonly string[], option: string) => paths.flatMap((path) => [option, path, path]);
  const roots = closed.flatMap(({ path }) => ["--tmpfs", path, ...directoriesOf(cwd, path)]);
  return {
    directories: [
      ...roots,
      ...bound(shown, isSealed ? "--ro-bind" : "--bind"),
      ...closed.flatMap(({ path }) => ["--remount-ro", path]),
      ...bound(
        sealed.map(({ path }) => path).filter((path) => !closed.some((root) => root.path === path)),
        "--ro-bind",
      ),
      ...bound(writable, "--bind"),
    ],
    // A pin makes its directory writable, which it is only outside of sealed roots.
    pins: bound(
      pins.filter((path) => isWritable && (sealed.length === 0 || writable.some((open) => isWithin(path, open)))),
      "--bind",
    ),
    readOnly: bound(
      readOnly.map(({ path }) => path),
      "--ro-bind",
    ),
    masks: [
      ...emptied.flatMap(({ path }) => ["--perms", "0555", "--tmpfs", path, "--remount-ro", path]),
      ...masked.flatMap(({ path }) => ["--ro-bind", maskFile, path]),
    ],
  };
}

/** Makes a working directory below a closed root, which would not exist otherwise. */
const directoriesOf = (cwd: string, root: string) => (cwd.startsWith(`${root}/`) ? ["--dir", cwd] : []);
