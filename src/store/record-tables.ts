import { join } from "node:path";
import { type DescMessage, fromJson, type JsonValue, type MessageShape, toJson } from "@bufbuild/protobuf";
import { z } from "zod";
import { type Connector, ConnectorSchema } from "../../gen/opencode/tool/v1/agent_service_pb.ts";
import {
  type PushSubscription,
  PushSubscriptionSchema,
  type StoredSecret,
  StoredSecretSchema,
} from "../../gen/opencode/tool/v1/channel_service_pb.ts";
import { type StopRecord, StopRecordSchema } from "../../gen/opencode/tool/v1/operator_service_pb.ts";
import {
  type AccountRecord,
  AccountRecordSchema,
  type Delegate,
  DelegateSchema,
  type LastSeen,
  LastSeenSchema,
  type Passkey,
  PasskeySchema,
  type PersonRecord,
  PersonRecordSchema,
  type ProviderRefresh,
  ProviderRefreshSchema,
} from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { type AcceptedSource, AcceptedSourceSchema } from "../../gen/opencode/tool/v1/source_service_pb.ts";
import { type WorkerDeclaration, WorkerDeclarationSchema } from "../../gen/opencode/tool/v1/worker_service_pb.ts";
import type { RecordTable } from "../core/record-table.ts";
import { openRecordFile } from "./record-file.ts";

/** Tables of records that change rarely, next to the credentials. */
export interface RecordTables {
  readonly connectors: RecordTable<Connector>;
  readonly acceptedSources: RecordTable<AcceptedSource>;
  readonly workerDeclarations: RecordTable<WorkerDeclaration>;
  readonly stops: RecordTable<StopRecord>;
  readonly people: RecordTable<PersonRecord>;
  readonly lastSeen: RecordTable<LastSeen>;
  readonly refreshes: RecordTable<ProviderRefresh>;
  readonly subscriptions: RecordTable<PushSubscription>;
  readonly secrets: RecordTable<StoredSecret>;
  readonly accounts: RecordTable<AccountRecord>;
  readonly passkeys: RecordTable<Passkey>;
  readonly delegates: RecordTable<Delegate>;
}

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

/** The kinds of records. */
export const recordKinds = {
  connectors: {
    name: "connectors",
    schema: ConnectorSchema,
    one: "connector",
    command: "toolgate connect",
  },
  acceptedSources: {
    name: "accepted-sources",
    schema: AcceptedSourceSchema,
    one: "accepted source",
    command: "toolgate upstream accept",
  },
  workerDeclarations: {
    name: "worker-declarations",
    schema: WorkerDeclarationSchema,
    one: "declaration of workers",
    command: "the worker",
  },
  stops: {
    name: "stops",
    schema: StopRecordSchema,
    one: "stop",
    command: "toolgate stop",
  },
  people: {
    name: "people",
    schema: PersonRecordSchema,
    one: "person",
    command: "toolgate people invite",
  },
  lastSeen: {
    name: "last-seen",
    schema: LastSeenSchema,
    one: "time of a credential",
    command: "toolgate serve",
  },
  refreshes: {
    name: "refreshes",
    schema: ProviderRefreshSchema,
    one: "right to refresh",
    command: "toolgate serve",
  },
  subscriptions: {
    name: "push-subscriptions",
    schema: PushSubscriptionSchema,
    one: "subscribed browser",
    command: "toolgate serve",
  },
  secrets: {
    name: "secrets",
    schema: StoredSecretSchema,
    one: "secret",
    command: "toolgate serve",
  },
  accounts: {
    name: "accounts",
    schema: AccountRecordSchema,
    one: "account at a channel",
    command: "toolgate people link",
  },
  passkeys: {
    name: "passkeys",
    schema: PasskeySchema,
    one: "passkey",
    command: "toolgate serve",
  },
  delegates: {
    name: "delegates",
    schema: DelegateSchema,
    one: "delegate",
    command: "toolgate people delegate",
  },
} as const satisfies Record<keyof RecordTables, RecordKind<DescMessage>>;

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
