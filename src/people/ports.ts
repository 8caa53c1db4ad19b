import type { Credential } from "./credential.ts";

/** The table of credentials. Every method that writes resolves when the change is durable. */
export interface CredentialTable {
  /** Returns the records as last read, always the same array until they change; a file that changed is read again first. */
  current(): readonly Credential[];
  /** Reads the records that other processes may have changed. */
  refresh(): Promise<void>;
  /** Adds a record. */
  add(credential: Credential): Promise<void>;
  /** Marks a record as revoked at a time, unless it is; returns it, or undefined if there is none. */
  revoke(id: string, time: number): Promise<Credential | undefined>;
  /** Removes records. */
  remove(ids: readonly string[]): Promise<void>;
}
