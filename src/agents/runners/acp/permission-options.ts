import * as z from "zod";

/** An option of a permission request. */
export const permissionOption = z.object({ optionId: z.string(), kind: z.string().catch("") });

type PermissionOption = z.output<typeof permissionOption>;

/**
 * Returns the option that allows this one use; undefined if there is none. `allow_always` is never taken for it: the grant would
 * live in the agent, beyond policy and revocation.
 */
export function allowingOption(options: readonly PermissionOption[]): string | undefined {
  return unambiguous(options, "allow_once");
}

/** Returns an option that refuses; undefined if there is none. */
export function refusingOption(options: readonly PermissionOption[]): string | undefined {
  return unambiguous(options, "reject_once") ?? unambiguous(options, "reject_always");
}

/** Returns the first option of a kind whose id no option of another kind has: the id is all that the agent gets. */
function unambiguous(options: readonly PermissionOption[], wanted: string): string | undefined {
  return options.find(
    ({ kind, optionId }) =>
      kind === wanted && options.every((other) => other.optionId !== optionId || other.kind === wanted),
  )?.optionId;
}
