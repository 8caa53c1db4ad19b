import type { StoreMembership } from "../../call/ports.ts";

/** Readiness of this replica, as orchestrators and load balancers ask for it. */
export interface Readiness {
  /** Returns why the replica cannot serve now; undefined if it can. */
  problem(): Promise<string | undefined>;
  /** Returns why this replica serves less safely than it could; undefined if nothing is known. */
  warning(): string | undefined;
  /** Aborted when the replica drains. */
  readonly draining: AbortSignal;
}

/** Creates the readiness: a replica is not ready while it drains, its store does not answer, or its policy differs. */
export function createReadiness(
  { ready, safety, agrees }: Pick<StoreMembership, "ready" | "safety"> & { agrees: () => boolean },
  draining: AbortSignal,
): Readiness {
  let probing: Promise<boolean> | undefined;
  /** Probes the store once for all that ask meanwhile: anyone may ask, and a probe is a round trip or a write. */
  const probe = (): Promise<boolean> => {
    probing ??= ready()
      .catch(() => false)
      .finally(() => {
        probing = undefined;
      });
    return probing;
  };
  return {
    draining,
    // Anyone may ask, so the facts are left to the log and GetServerInfo.
    warning: () =>
      safety().warnings.length === 0
        ? undefined
        : "the store has fewer copies than it should, or a failover may lose what was acknowledged: the log and GetServerInfo say why",
    async problem() {
      if (draining.aborted) return "draining";
      if (!(await probe()))
        return "the store cannot write: it does not answer, is full, is damaged or lacks copies; the log says which";
      if (agrees()) return undefined;
      return "policy mismatch: this replica's rules differ from those of other replicas on this store, which started or reloaded later: it takes no calls and no answers; give all the same rules";
    },
  };
}
