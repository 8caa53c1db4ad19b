import { isWithin } from "./is-within.ts";
import type { Covered } from "./layers.ts";
import type { Planned } from "./plan-messages.ts";

/**
 * Returns what a plan covers and an earlier one for the same request does not. A mount stays with its file wherever that is moved, so
 * files are compared by their identities.
 */
export function notCovered(now: Planned, before: Planned): Covered[] {
  const idOf = ({ path }: Covered) => now.identities.get(path);
  const idsOf = (covered: readonly Covered[]) => new Set(covered.map(({ path }) => before.identities.get(path)));
  const isNew = (covered: readonly Covered[], ids: ReadonlySet<string | undefined>, above: readonly Covered[]) =>
    covered.filter((one) => {
      const id = idOf(one);
      return id !== undefined && !ids.has(id) && !above.some(({ path }) => isWithin(one.path, path));
    });
  const hiding = [...before.closed, ...before.emptied];
  const hidden = [...before.emptied, ...before.masked];
  const sealing = [...hiding, ...before.sealed, ...before.readOnly, ...before.absent];
  // Of too many nothing can be covered, which was asked about.
  const isReadWhole = before.excess.read === 0 && !before.isPartial;
  return [
    ...(isReadWhole ? isNew([...now.emptied, ...now.masked], idsOf(hidden), hiding) : []),
    ...(before.excess.edit === 0 ? isNew(now.readOnly, idsOf([...hidden, ...before.readOnly]), sealing) : []),
    ...outside(before.shown, now.shown),
    ...outside(before.writable, now.writable),
  ];
}

/** Lists the paths that are not below any of the others: they were open as a whole, and hold something by now that is not. */
const outside = (paths: readonly string[], others: readonly string[]): Covered[] =>
  paths
    .filter((path) => !others.some((other) => isWithin(path, other)))
    .map((path) => ({ path, reason: "not all that it holds is allowed" }));
