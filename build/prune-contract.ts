import { readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { fromBinary, isFieldSet, type Message, toBinary } from "@bufbuild/protobuf";
import { base64Decode } from "@bufbuild/protobuf/wire";
import {
  type DescriptorProto,
  type FieldDescriptorProto,
  FieldDescriptorProtoSchema,
  type FileDescriptorProto,
  FileDescriptorProtoSchema,
} from "@bufbuild/protobuf/wkt";

/** Generated code of a proto file: its descriptor in base64 and the descriptors that it imports. */
const embedded = /fileDesc\("([^"]+)"(?:, \[([^\]]*)\])?\)/;

/** The import of the validation rules, which only the service evaluates. */
const validation = /file_buf_validate_validate(?:, )?|, file_buf_validate_validate$/;

/** The part of the contract that a page needs, derived from its sources. */
export interface NeededContract {
  /** The rpcs that the page calls. */
  readonly methods: ReadonlySet<string>;
  /** The messages and enums that the page can send or receive, by full name with a leading dot. */
  readonly types: ReadonlySet<string>;
  /** Rewrites one generated file: the same exports, but a descriptor without validation rules, unused rpcs and unused fields. */
  prune(code: string): string;
}

/**
 * Finds the rpcs and schemas that the sources name and everything that is reachable from them by fields that the sources name.
 * A field that no source names cannot be read or written by the page; a decoder skips it.
 */
export function neededContract(gen: string, sources: readonly string[]): NeededContract {
  const files = typescriptIn(gen).flatMap((path) => descriptorIn(readFileSync(path, "utf8")) ?? []);
  const text = sources.flatMap(typescriptIn).map((path) => readFileSync(path, "utf8"));
  const named = new Set(text.flatMap((code) => code.match(/\b[a-z]\w*/g) ?? []));
  const called = new Set(text.flatMap((code) => [...code.matchAll(/\.(\w+)\(/g)].map(([, name]) => name)));
  const schemas = new Set(text.flatMap((code) => [...code.matchAll(/\b(\w+)Schema\b/g)].map(([, name]) => name)));

  const messages = new Map<string, DescriptorProto>();
  for (const { package: scope, messageType } of files)
    for (const type of messageType) collect(`.${scope}`, type, messages);
  const methods = new Set<string>();
  const types = new Set<string>();
  const reach = (name: string): void => {
    if (name === "" || types.has(name)) return;
    types.add(name);
    const type = messages.get(name);
    if (type === undefined) return;
    type.field = type.field.filter((field) => isInOneof(field) || named.has(localName(field.name)));
    for (const { typeName } of type.field) reach(typeName);
  };
  for (const service of files.flatMap((file) => file.service)) {
    for (const { name, inputType, outputType } of service.method) {
      if (!called.has(name.charAt(0).toLowerCase() + name.slice(1))) continue;
      methods.add(name);
      reach(inputType);
      reach(outputType);
    }
  }
  for (const name of messages.keys()) if (schemas.has(name.slice(name.lastIndexOf(".") + 1))) reach(name);
  return { methods, types, prune: (code) => prune(code, methods, messages, types) };
}

function prune(
  code: string,
  methods: ReadonlySet<string>,
  messages: ReadonlyMap<string, DescriptorProto>,
  types: ReadonlySet<string>,
): string {
  const file = descriptorIn(code);
  if (file === undefined) return code;
  removeOptions(file);
  for (const service of file.service) service.method = service.method.filter(({ name }) => methods.has(name));
  for (const type of file.messageType) removeFields(`.${file.package}`, type, messages, types);
  // The page has the names of values in the generated enums; enums of proto3 take any number.
  for (const { value } of file.enumType) value.splice(1);
  const kept = [...file.messageType.entries()].filter(([, type]) => isNeeded(`.${file.package}`, type, types));
  file.messageType = kept.map(([, type]) => type);
  const indices = new Map(kept.map(([before], now) => [before, now]));
  // Names that repeat are zipped well as they are, but not in base64.
  const text = JSON.stringify(Buffer.from(toBinary(FileDescriptorProtoSchema, file)).toString("latin1"));
  return code
    .replace(embedded, (_, __, imports = "") => `fileDesc(btoa(${text}), [${imports.replace(validation, "")}])`)
    .replace(/(?<=messageDesc\(\w+, )\d+/g, (index) => String(indices.get(Number(index)) ?? -1))
    .replace(/^import \{ file_buf_validate_validate \} from .*$/m, "");
}

function descriptorIn(code: string): FileDescriptorProto | undefined {
  const base64 = embedded.exec(code)?.[1];
  return base64 === undefined ? undefined : fromBinary(FileDescriptorProtoSchema, base64Decode(base64));
}

function collect(scope: string, type: DescriptorProto, into: Map<string, DescriptorProto>): void {
  const name = `${scope}.${type.name}`;
  into.set(name, type);
  for (const nested of type.nestedType) collect(name, nested, into);
}

/** Validation rules are extensions of the options, so they are among the unknown fields. */
function removeOptions(message: Message): void {
  delete message.$unknown;
  for (const value of Object.values(message).flat()) {
    if (typeof value === "object" && value !== null && "$typeName" in value) removeOptions(value as Message);
  }
}

/** Checks if a message or one in it is used: the others are removed, which changes the indices by which generated code refers to messages. */
function isNeeded(scope: string, { name, nestedType }: DescriptorProto, types: ReadonlySet<string>): boolean {
  const own = `${scope}.${name}`;
  return types.has(own) || nestedType.some((type) => isNeeded(own, type, types));
}

/** Removes unused fields. Unused messages in others stay in place, empty. */
function removeFields(
  scope: string,
  type: DescriptorProto,
  messages: ReadonlyMap<string, DescriptorProto>,
  types: ReadonlySet<string>,
): void {
  const name = `${scope}.${type.name}`;
  for (const nested of type.nestedType) removeFields(name, nested, messages, types);
  const needed = new Set(types.has(name) ? messages.get(name)?.field.map(({ number }) => number) : []);
  type.field = type.field.filter(({ number }) => needed.has(number));
  if (!types.has(name)) type.oneofDecl = [];
}

/** A message keeps its oneofs whole: their members are named by case. */
function isInOneof(field: FieldDescriptorProto): boolean {
  return isFieldSet(field, FieldDescriptorProtoSchema.field.oneofIndex);
}

/** The name of a field in generated code. */
function localName(field: string): string {
  return field.replaceAll(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
}

function typescriptIn(folder: string): readonly string[] {
  return readdirSync(folder, { recursive: true, encoding: "utf8" })
    .filter((name) => /\.tsx?$/.test(name))
    .map((name) => resolve(join(folder, name)));
}
