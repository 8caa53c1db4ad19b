import { type DescField, type DescMessage, isMessage, type Message, ScalarType } from "@bufbuild/protobuf";
import { WireType } from "@bufbuild/protobuf/wire";
import { MessageBuffer } from "./message-buffer.ts";

/** Returns the binary form of a message where it is known, so that it is copied instead of encoded again. */
export type KnownBytes = (message: Message) => Uint8Array | undefined;

/**
 * Encodes a message of the contract to the same bytes as the generated encoder, in less time: all messages share one buffer,
 * and a JSON object is written without a message for each of its values. Nested messages may have `known` bytes.
 */
export function encodeMessage(schema: DescMessage, message: Message, known?: KnownBytes): Uint8Array {
  if (message.$typeName !== schema.typeName) throw new Error(`${message.$typeName} is not a ${schema.typeName}`);
  // `known` may encode another message meanwhile, which then gets its own buffer.
  const buffer = idle ?? new MessageBuffer();
  idle = undefined;
  try {
    encoderOf(schema)({ buffer, known }, message);
    return buffer.copy();
  } finally {
    buffer.clear();
    idle = buffer;
  }
}

let idle: MessageBuffer | undefined;

/** Destination of an encoding. */
interface Target {
  buffer: MessageBuffer;
  known: KnownBytes | undefined;
}

type EncodeMessage = (target: Target, message: Message) => void;
type EncodeField = (target: Target, message: Readonly<Record<string, unknown>>) => void;
type EncodeValue = (target: Target, value: unknown) => void;

const encoders = new Map<DescMessage, EncodeMessage>();

/** Returns the encoder of a message type, which is made once, when it is first used. */
function encoderOf(schema: DescMessage): EncodeMessage {
  const made = encoders.get(schema);
  if (made !== undefined) return made;
  const fields: EncodeField[] = [];
  const encode: EncodeMessage = (target, message) => {
    // The fields of a generated message are its properties.
    for (const field of fields) field(target, message as Message & Record<string, unknown>);
    for (const { no, wireType, data } of message.$unknown ?? []) {
      target.buffer.varint(tagOf(no, wireType));
      target.buffer.raw(data);
    }
  };
  // A message type may contain itself.
  encoders.set(schema, encode);
  const inOrder = schema.fields.toSorted((a, b) => a.number - b.number);
  try {
    fields.push(...inOrder.map(fieldEncoder));
  } catch (error) {
    // An encoder without its fields would write an empty message the next time.
    encoders.delete(schema);
    throw error;
  }
  return encode;
}

function fieldEncoder(field: DescField): EncodeField {
  switch (field.fieldKind) {
    case "list":
      return listEncoder(field);
    case "map":
      return mapEncoder(field);
    default:
      return singularEncoder(field);
  }
}

function singularEncoder(field: DescField & { fieldKind: "scalar" | "enum" | "message" }): EncodeField {
  const { localName: name } = field;
  const encode = valueEncoder(field, field.number, field.fieldKind === "scalar" ? field.scalar : undefined);
  const oneof = field.oneof?.localName;
  if (oneof !== undefined) {
    return (target, message) => {
      const arm = message[oneof];
      if (isArm(arm) && arm.case === name) encode(target, arm.value);
    };
  }
  if (field.presence !== implicitPresence) {
    return (target, message) => {
      if (message[name] !== undefined) encode(target, message[name]);
    };
  }
  return (target, message) => {
    if (!isZero(message[name])) encode(target, message[name]);
  };
}

function listEncoder(field: DescField & { fieldKind: "list" }): EncodeField {
  if (field.packed) return packedEncoder(field);
  const { localName: name } = field;
  const encode = valueEncoder(field, field.number, field.listKind === "scalar" ? field.scalar : undefined);
  return (target, message) => {
    const items = message[name];
    if (!Array.isArray(items)) throw unexpected(field);
    for (const item of items) encode(target, item);
  };
}

/** Writes numbers without a tag for each. The contract has no others than `uint32`. */
function packedEncoder(field: DescField & { fieldKind: "list" }): EncodeField {
  if (field.listKind !== "scalar" || field.scalar !== ScalarType.UINT32) throw unsupported(field);
  const { localName: name } = field;
  const tag = tagOf(field.number, WireType.LengthDelimited);
  return ({ buffer }, message) => {
    const items = message[name];
    if (!Array.isArray(items)) throw unexpected(field);
    if (items.length === 0) return;
    buffer.varint(tag);
    const start = buffer.open();
    for (const item of items) {
      if (typeof item !== "number" || item !== item >>> 0) throw unexpected(field);
      buffer.varint(item);
    }
    buffer.close(start);
  };
}

function mapEncoder(field: DescField & { fieldKind: "map" }): EncodeField {
  const { mapKey } = field;
  if (mapKey !== ScalarType.STRING && mapKey !== ScalarType.UINT32) throw unsupported(field);
  const encodeKey = scalarEncoder(field, 1, mapKey);
  const { localName: name } = field;
  const tag = tagOf(field.number, WireType.LengthDelimited);
  const encode = valueEncoder(field, 2, field.mapKind === "scalar" ? field.scalar : undefined);
  return (target, message) => {
    const { buffer } = target;
    const entries = message[name];
    if (!isObject(entries)) throw unexpected(field);
    for (const key of Object.keys(entries)) {
      buffer.varint(tag);
      const start = buffer.open();
      encodeKey(target, mapKey === ScalarType.STRING ? key : Number(key));
      encode(target, entries[key]);
      buffer.close(start);
    }
  };
}

/** Returns what writes one value of a field with its tag. */
function valueEncoder(field: DescField, number: number, scalar: ScalarType | undefined): EncodeValue {
  if (scalar !== undefined) return scalarEncoder(field, number, scalar);
  if (field.message === undefined) return scalarEncoder(field, number, ScalarType.UINT32);
  const isJson =
    field.message.typeName === "google.protobuf.Struct" && field.parent.typeName !== "google.protobuf.Value";
  return isJson ? jsonEncoder(number) : messageEncoder(field, number, field.message);
}

function messageEncoder(field: DescField, number: number, schema: DescMessage): EncodeValue {
  const tag = tagOf(number, WireType.LengthDelimited);
  const encode = encoderOf(schema);
  return (target, value) => {
    if (!isMessage(value, schema)) throw unexpected(field);
    const { buffer, known } = target;
    buffer.varint(tag);
    const bytes = known?.(value);
    if (bytes !== undefined) {
      buffer.varint(bytes.byteLength);
      buffer.raw(bytes);
      return;
    }
    const start = buffer.open();
    encode(target, value);
    buffer.close(start);
  };
}

/** Writes a JSON object as a google.protobuf.Struct. */
function jsonEncoder(number: number): EncodeValue {
  const tag = tagOf(number, WireType.LengthDelimited);
  return ({ buffer }, value) => {
    buffer.varint(tag);
    const start = buffer.open();
    writeStruct(buffer, value);
    buffer.close(start);
  };
}

function writeStruct(buffer: MessageBuffer, value: unknown): void {
  if (!isObject(value)) return;
  for (const key of Object.keys(value)) {
    buffer.varint(structTags.field);
    const start = buffer.open();
    buffer.varint(keyTag);
    buffer.text(key);
    writeValue(buffer, structTags.value, value[key]);
    buffer.close(start);
  }
}

/** Writes a google.protobuf.Value with its tag. What is not JSON is an empty one, as in the generated encoder. */
function writeValue(buffer: MessageBuffer, tag: number, value: unknown): void {
  buffer.varint(tag);
  const start = buffer.open();
  if (value === null) {
    buffer.varint(structTags.null);
    buffer.varint(0);
  } else if (typeof value === "number") {
    buffer.varint(structTags.number);
    buffer.double(value);
  } else if (typeof value === "string") {
    buffer.varint(structTags.string);
    buffer.text(value);
  } else if (typeof value === "boolean") {
    buffer.varint(structTags.bool);
    buffer.varint(value ? 1 : 0);
  } else if (Array.isArray(value)) {
    buffer.varint(structTags.list);
    const list = buffer.open();
    for (const item of value) writeValue(buffer, structTags.item, item);
    buffer.close(list);
  } else if (isObject(value)) {
    buffer.varint(structTags.struct);
    const struct = buffer.open();
    writeStruct(buffer, value);
    buffer.close(struct);
  }
  buffer.close(start);
}

/** Returns what writes a scalar. The contract has no others; a new one is added here. */
function scalarEncoder(field: DescField, number: number, scalar: ScalarType): EncodeValue {
  switch (scalar) {
    case ScalarType.STRING:
      return tagged(number, WireType.LengthDelimited, ({ buffer }, value) => buffer.text(String(value)));
    case ScalarType.BYTES:
      return tagged(number, WireType.LengthDelimited, ({ buffer }, value) => {
        if (!(value instanceof Uint8Array)) throw unexpected(field);
        buffer.varint(value.byteLength);
        buffer.raw(value);
      });
    case ScalarType.BOOL:
      return tagged(number, WireType.Varint, ({ buffer }, value) => buffer.varint(value ? 1 : 0));
    case ScalarType.DOUBLE:
      return tagged(number, WireType.Bit64, ({ buffer }, value) => {
        if (typeof value !== "number") throw unexpected(field);
        buffer.double(value);
      });
    case ScalarType.UINT32:
      return tagged(number, WireType.Varint, ({ buffer }, value) => {
        if (typeof value !== "number" || value !== value >>> 0) throw unexpected(field);
        buffer.varint(value);
      });
    case ScalarType.INT32:
      return tagged(number, WireType.Varint, ({ buffer }, value) => {
        if (typeof value !== "number" || value !== (value | 0)) throw unexpected(field);
        if (value < 0) buffer.varint64(BigInt.asUintN(64, BigInt(value)));
        else buffer.varint(value);
      });
    case ScalarType.UINT64:
      return tagged(number, WireType.Varint, ({ buffer }, value) => {
        if (typeof value !== "bigint" || value !== BigInt.asUintN(64, value)) throw unexpected(field);
        buffer.varint64(value);
      });
    case ScalarType.INT64:
      return tagged(number, WireType.Varint, ({ buffer }, value) => {
        if (typeof value !== "bigint" || value !== BigInt.asIntN(64, value)) throw unexpected(field);
        buffer.varint64(BigInt.asUintN(64, value));
      });
    default:
      throw unsupported(field);
  }
}

function tagged(number: number, wireType: WireType, encode: EncodeValue): EncodeValue {
  const tag = tagOf(number, wireType);
  return (target, value) => {
    target.buffer.varint(tag);
    encode(target, value);
  };
}

/** Checks if a value is the default that proto3 omits. */
function isZero(value: unknown): boolean {
  if (value instanceof Uint8Array) return value.byteLength === 0;
  return value === "" || value === false || value === 0n || Object.is(value, 0);
}

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null;

const isArm = (value: unknown): value is { case: string | undefined; value?: unknown } => isObject(value);

const tagOf = (number: number, wireType: WireType) => ((number << 3) | wireType) >>> 0;

const unsupported = (field: DescField) =>
  new Error(`no encoder for ${field.parent.typeName}.${field.name}; add its kind to encode-message.ts`);

const unexpected = (field: DescField) =>
  new Error(`the value of ${field.parent.typeName}.${field.name} is not of the type of the field`);

/** google.protobuf.FeatureSet.FieldPresence.IMPLICIT */
const implicitPresence = 2;
const keyTag = tagOf(1, WireType.LengthDelimited);
const structTags = {
  field: tagOf(1, WireType.LengthDelimited),
  value: tagOf(2, WireType.LengthDelimited),
  null: tagOf(1, WireType.Varint),
  number: tagOf(2, WireType.Bit64),
  string: tagOf(3, WireType.LengthDelimited),
  bool: tagOf(4, WireType.Varint),
  struct: tagOf(5, WireType.LengthDelimited),
  list: tagOf(6, WireType.LengthDelimited),
  item: tagOf(1, WireType.LengthDelimited),
};
