import { z } from "zod";

/** Name of the entry that ends a backup. */
export const manifestName = "manifest.json";
/** Name of the database, in a backup and in the data directory. */
export const databaseName = "toolgate.sqlite";
/** Directory of the outputs, in a backup and in the data directory. */
export const outputDirectory = "output";

/** Name of the guard in the data directory. */
export const guardName = "toolgate.guard";

/** Content of the manifest: the entries of a backup by their names. */
export const manifestSchema = z.object({
  format: z.literal(1),
  storeId: z.string(),
  /** Time of the backup, in ms since the epoch. */
  created: z.number(),
  entries: z.record(z.string(), z.object({ bytes: z.number(), sha256: z.string() })),
});

/** The content of a manifest. */
export type BackupManifest = z.infer<typeof manifestSchema>;

/** Returns true for a name that an entry may have; no other one is extracted. */
export const isEntryName = (name: string) => name === databaseName || outputName.test(name);

const outputName = /^output\/[A-Za-z0-9_-]{1,128}\/[A-Za-z0-9_-]{1,128}$/;
