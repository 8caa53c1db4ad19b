import { join } from "node:path";
import { type DescMessage, fromJson, type JsonValue, type MessageShape, toJson } from "@bufbuild/protobuf";
import { z } from "zod";
import { ConnectorSchema } from "../../gen/opencode/tool/v1/agent_service_pb.ts";
import { PushSubscriptionSchema, StoredSecretSchema } from "../../gen/opencode/tool/v1/channel_service_pb.ts";
import { StopRecordSchema } from "../../gen/opencode/tool/v1/operator_service_pb.ts";
import {
  AccountRecordSchema,
  DelegateSchema,
  LastSeenSchema,
  PasskeySchema,
  PersonRecordSchema,
  ProviderRefreshSchema,
} from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { AcceptedSourceSchema } from "../../gen/opencode/tool/v1/source_service_pb.ts";
import { WorkerDeclarationSchema } from "../../gen/opencode/tool/v1/worker_service_pb.ts";
import type { Store } from "../call/ports.ts";
import type { RecordTable } from "../core/record-table.ts";
import type { WorkerDirectory } from "../core/worker-directory.ts";
import type { CredentialTable } from "../people/ports.ts";
import type { ExportStore, NoticeStore } from "../reach/ports.ts";
import { openRecordFile } from "./record-file.ts";

/** A kind of records. */
export interface RecordKind<Schema extends DescMessage> {
  /** Name of the table: that of its file, and of its hash in Redis. */
  readonly name: string;
  readonly schema: Schema;
  /** Name of its records, and the command that makes them again. */
  readonly one: string;
  readonly command: string;
}

/** Message with the ID under which a table stores it. */
export type RecordOf<Schema extends DescMessage> = MessageShape<Schema> & { id: string };

/** Describes a kind of records; the default command is for those that the service makes again. */
const kind = <Schema extends DescMessage>(
  name: string,
  schema: Schema,
  one: string,
  command = "toolgate serve",
): RecordKind<Schema> => ({ name, schema, one, command });

/** The kinds of records. */
export const recordKinds = {
  connectors: kind("connectors", ConnectorSchema, "connector", "toolgate connect"),
  acceptedSources: kind("accepted-sources", AcceptedSourceSchema, "accepted source", "toolgate upstream accept"),
  workerDeclarations: kind("worker-declarations", WorkerDeclarationSchema, "declaration of workers", "the worker"),
  stops: kind("stops", StopRecordSchema, "stop", "toolgate stop"),
  people: kind("people", PersonRecordSchema, "person", "toolgate people invite"),
  lastSeen: kind("last-seen", LastSeenSchema, "time of a credential"),
  refreshes: kind("refreshes", ProviderRefreshSchema, "right to refresh"),
  subscriptions: kind("push-subscriptions", PushSubscriptionSchema, "subscribed browser"),
  secrets: kind("secrets", StoredSecretSchema, "secret"),
  accounts: kind("accounts", AccountRecordSchema, "account at a channel", "toolgate people link"),
  passkeys: kind("passkeys", PasskeySchema, "passkey"),
  delegates: kind("delegates", DelegateSchema, "delegate", "toolgate people delegate"),
};

/** Tables of records that change rarely, next to the credentials. */
export type RecordTables = {
  readonly [Kind in keyof typeof recordKinds]: RecordTable<RecordOf<(typeof recordKinds)[Kind]["schema"]>>;
};

/** An open store of a service: its ports, and the tables that people change next to its records of calls. */
export interface ServiceStore extends Store, RecordTables {
  credentials: CredentialTable;
  workerDirectory: WorkerDirectory;
  notices: NoticeStore;
  exports: ExportStore;
  /** Yields the bytes of a backup; refuses with BACKUP_UNSUPPORTED. */
  backUp(): AsyncIterable<Uint8Array>;
}

/** Makes the table of each kind. */
export async function openRecordTables(
  open: <Schema extends DescMessage>(kind: RecordKind<Schema>) => Promise<RecordTable<RecordOf<Schema>>>,
): Promise<RecordTables> {
  const opened = Object.entries(recordKinds).map(async ([key, kind]) => [key, await open<DescMessage>(kind)] as const);
  return Object.fromEntries(await Promise.all(opened)) as unknown as RecordTables;
}

/** Returns the JSON of a record. Throws if it could not be read again, such as text that is no Unicode. */
export function readableJson<Schema extends DescMessage>(schema: Schema, record: MessageShape<Schema>): JsonValue {
  const json = toJson(schema, record);
  fromJson(schema, json);
  return json;
}

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
    async put(record) {
      readableJson(schema, record);
      await changeAndRead((stored) => [...stored.filter(({ id }) => id !== record.id), record]);
    },
    async update<R extends Row | undefined>(id: string, next: (stored: Row | undefined) => R) {
      const made: { record?: R } = {};
      await changeAndRead((stored) => {
        const record = next(stored.find((each) => each.id === id));
        made.record = record;
        if (record === undefined) return stored;
        readableJson(schema, record);
        return [...stored.filter((each) => each.id !== id), record];
      });
      return made.record as R;
    },
    async remove(id) {
      let found = records.find((record) => record.id === id);
      if (found === undefined) return undefined;
      await changeAndRead((stored) => {
        // Another one may have removed it meanwhile.
        found = stored.find((record) => record.id === id);
        return stored.filter((record) => record.id !== id);
      });
      return found;
    },
  };
}
