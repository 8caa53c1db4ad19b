import { join } from "node:path";
import { type DescMessage, fromJson, type JsonValue, toJson } from "@bufbuild/protobuf";
import { z } from "zod";
import type { RecordTable } from "../core/record-table.ts";
import { openRecordFile } from "./record-file.ts";
import type { RecordKind, RecordOf } from "./record-tables.ts";

/** Opens a table in a file of the data directory. Only its service changes the file. */
export function openRecordTable<Schema extends DescMessage>(
  dataDirectory: string,
  { name, schema, one, command }: RecordKind<Schema>,
): RecordTable<RecordOf<Schema>> {
  type Row = RecordOf<Schema>;
  const form = z.object({ [name]: z.array(z.json()) });
  const { current, change } = openRecordFile<Row>(join(dataDirectory, `${name}.json`), {
    read: (json) => (form.parse(json)[name] ?? []).map((row) => fromJson(schema, row as JsonValue) as Row),
    write: (rows) => ({ [name]: rows.map((row) => toJson(schema, row)) }),
    unreadable: (fact) => `a table of ${one}s (${fact}): restore it, or remove it and run \`${command}\` again`,
  });
  let records = current();
  async function changeAndRead(next: (stored: readonly Row[]) => readonly Row[]): Promise<void> {
    await change(next);
    records = current();
  }
  return {
    current: () => records,
    async refresh() {},
    put: (record) => changeAndRead((stored) => [...stored.filter(({ id }) => id !== record.id), record]),
    async remove(id) {
      const found = records.find((record) => record.id === id);
      if (found !== undefined) await changeAndRead((stored) => stored.filter((record) => record.id !== id));
      return found;
    },
  };
}
