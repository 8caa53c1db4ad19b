import { readFile } from "node:fs/promises";
import { text } from "node:stream/consumers";
import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { isObject } from "../core/json.ts";
import type { CliProcess } from "./context.ts";
import { UsageError } from "./failure/command-error.ts";

/** Reads a JSON object from an argument: the text itself, `@FILE`, or `-` for stdin. */
export async function readJsonObject(argument: string, name: string, io: CliProcess): Promise<JsonObject> {
  return parseJsonObject(await readArgument(argument, name, io), name);
}

/** Parses a JSON object that a person wrote; `name` identifies it in errors. */
export function parseJsonObject(written: string, name: string): JsonObject {
  const value = parse(written, name);
  if (isObject(value)) return value;
  throw new UsageError(`${name} must be a JSON object, not ${written.trim().slice(0, 40)}`, example);
}

async function readArgument(argument: string, name: string, { stdin }: CliProcess): Promise<string> {
  if (argument === "-") return await text(stdin);
  if (!argument.startsWith("@")) return argument;
  const file = argument.slice(1);
  try {
    return await readFile(file, "utf8");
  } catch (cause) {
    throw new UsageError(`${name}: the file ${file} cannot be read`, "name a readable file as @FILE, or - for stdin", {
      cause,
    });
  }
}

function parse(written: string, name: string): JsonValue {
  try {
    return JSON.parse(written);
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new UsageError(`${name} is not JSON: ${why}`, example, { cause });
  }
}

const example = `write it like '{"filePath": "README.md"}' (in single quotes), as @FILE, or as - to read it from stdin`;
