import { randomUUID } from "node:crypto";
import type { Keys } from "./keys.ts";
import type { Link } from "./link.ts";
import { number, text, texts } from "./reply.ts";

/** Place of the tables of a replica; a command of the operator has no replica. */
export interface TablePlace {
  link: Pick<Link, "command" | "run">;
  keys: Pick<Keys, "records" | "recordsMark" | "news">;
  replica?: string;
}

/**
 * Opens a hash of records that has a mark, which each change replaces: thousands of records are read again only after one. A change
 * also notifies the other replicas.
 */
export function createMarkedHash({ link, keys, replica = "" }: TablePlace, table: string) {
  const names = { records: keys.records(table), mark: keys.recordsMark(table) };
  let seen: string | undefined;

  async function change(id: string, record?: string, before?: string): Promise<boolean> {
    const values = { id, table, newMark: randomUUID(), from: replica, channel: keys.news };
    const bytes = {
      record: record === undefined ? undefined : Buffer.from(record),
      before: before === undefined ? undefined : Buffer.from(before),
    };
    return number(await link.run("change_record", names, values, bytes)) === 1;
  }

  return {
    key: names.records,
    /** Reads all records, in the order of their text; undefined if they are as they were at the last time. */
    async readChanged(): Promise<string[] | undefined> {
      // Read before the records: a change between the two is read once more.
      const found = await link.command("get", names.mark);
      const mark = found === null ? undefined : text(found);
      if (mark !== undefined && mark === seen) return undefined;
      const records = texts(await link.command("hvals", names.records)).toSorted();
      seen = mark;
      return records;
    },
    async get(id: string): Promise<string | undefined> {
      const found = await link.command("hget", names.records, id);
      return found === null ? undefined : text(found);
    },
    put: (id: string, record: string) => change(id, record),
    /** Stores a record if the present one is `before`, empty for none; returns false if it is another one. */
    replace: (id: string, before: string, record: string) => change(id, record, before),
    /** Returns false if there is no such record, or another replica removed it. */
    remove: (id: string) => change(id),
  };
}
