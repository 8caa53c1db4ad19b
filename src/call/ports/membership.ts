/** This replica's membership in the store: identity, agreement with other replicas, health. */
export interface StoreMembership {
  /** Identifies the store's contents; a new id means that all earlier contents are lost. */
  readonly storeId: string;
  /**
   * Identifies the contents of a session tree: the store id, and after a dot the generation of its shard, if a failover can raise
   * that. Another one means that acknowledged work of the tree may be lost.
   */
  storeIdOf(root: string): string;
  /**
   * Reads these ids from the store again, of this session tree: another replica may know later ones. Throws STORE_UNAVAILABLE if the
   * store does not answer, or too few of its copies do.
   */
  verifyIds(root?: string): Promise<void>;
  /** Number of the store's format: versions with the same one can share or follow each other on a store, in both directions. */
  readonly format: number;
  /** True if other replicas may take over calls whose lease has lapsed. */
  readonly isShared: boolean;
  /**
   * Announces the digest of this replica's policy; returns false if replicas that share the store have another one. A start or a reload
   * takes its policy for all, which those with another one then find; within ten minutes only a reload takes a replaced one back.
   */
  agrees(policy: string, takes?: "start" | "reload"): Promise<boolean>;
  /** Returns true if the store answers. */
  ready(): Promise<boolean>;
  /** Durability of acknowledged writes when a server of the store is lost, as of the last check. */
  safety(): StoreSafety;
  /** Bytes of the files of the store by part, now; none of a store that another program holds. */
  sizes(): Promise<Readonly<Record<string, number>>>;
  /** Closes the store with all of its ports. */
  close(): Promise<void>;
}

/** Durability of acknowledged writes when a server of the store is lost. */
export interface StoreSafety {
  /** Connected copies of the server that has fewest; 0 for a store without copies. */
  readonly copies: number;
  /** Copies that each server should have: the most that were counted, or the number of the settings. */
  readonly expected: number;
  /** Copies that have what a step wrote before it is acknowledged; 0 if it is acknowledged at once. */
  readonly required: number;
  /** Facts for which a failover may lose more than it has to, each with the next step. */
  readonly warnings: readonly string[];
}

/** The clock that decides leases and deadlines. */
export interface StoreClock {
  /** Ms since the epoch. */
  now(): number;
}

/** Removal of records past their retention time. */
export interface Retention {
  /** Removes them; returns the names of outputs whose content can be removed too. */
  sweep(): Promise<{ outputs: { root: string; id: string }[] }>;
}
