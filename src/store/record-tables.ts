import type { DescMessage, MessageShape } from "@bufbuild/protobuf";
import { type Connector, ConnectorSchema } from "../../gen/opencode/tool/v1/agent_service_pb.ts";
import { type StopRecord, StopRecordSchema } from "../../gen/opencode/tool/v1/operator_service_pb.ts";
import {
  type LastSeen,
  LastSeenSchema,
  type PersonRecord,
  PersonRecordSchema,
} from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { type AcceptedSource, AcceptedSourceSchema } from "../../gen/opencode/tool/v1/source_service_pb.ts";
import { type WorkerDeclaration, WorkerDeclarationSchema } from "../../gen/opencode/tool/v1/worker_service_pb.ts";
import type { RecordTable } from "../core/record-table.ts";

/** Tables of records that change rarely, next to the credentials. */
export interface RecordTables {
  readonly connectors: RecordTable<Connector>;
  readonly acceptedSources: RecordTable<AcceptedSource>;
  readonly workerDeclarations: RecordTable<WorkerDeclaration>;
  readonly stops: RecordTable<StopRecord>;
  readonly people: RecordTable<PersonRecord>;
  readonly lastSeen: RecordTable<LastSeen>;
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
} as const satisfies Record<keyof RecordTables, RecordKind<DescMessage>>;
