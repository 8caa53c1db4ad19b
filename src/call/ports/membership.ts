/** This replica's membership in the store: identity, agreement with other replicas, health. */
export interface StoreMembership {
  /** Identifies the store's contents; a new id means that all earlier contents are lost. */
  readonly storeId: string;
  /** True if other replicas may take over calls whose lease has lapsed. */
  readonly isShared: boolean;
  /** Announces the digest of this replica's policy; returns false if replicas that share the store have another one. */
  agrees(policy: string): Promise<boolean>;
  /** Returns true if the store answers. */
  ready(): Promise<boolean>;
  /** Closes the store with all of its ports. */
  close(): Promise<void>;
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
