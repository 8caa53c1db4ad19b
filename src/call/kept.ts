import { create, fromJson, type JsonObject, type JsonValue } from "@bufbuild/protobuf";
import { type Value, ValueSchema } from "@bufbuild/protobuf/wkt";
import { type FilePart, FilePartSchema, type Preview } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Attachment } from "../tool/tool.ts";
import { newId } from "./ids.ts";
import { beginning } from "./planning.ts";
import type { OutputStore } from "./ports.ts";
import type { Running } from "./running.ts";

/** Keeps what is too large for a part or an ask beside it, in the output store. */
export function createKept({ outputs, now }: { outputs: Pick<OutputStore, "append">; now(): number }) {
  return {
    /** A diff that is too large for an ask is stored whole, and the ask says where. */
    async preview({ record: { ref } }: Pick<Running, "record">, preview: Preview): Promise<Preview> {
      const id = newId("out", now());
      const kept = beginning(preview, `toolgate-output:${id}`);
      if (kept.url !== "") await outputs.append(ref.root, id, Buffer.from(preview.diff));
      return kept;
    },

    /** Structured output as the part holds it; what is too large for that is stored whole, and the metadata says where. */
    async structured(
      { record: { ref } }: Pick<Running, "record">,
      output: JsonValue | undefined,
    ): Promise<{ value?: Value; metadata?: JsonObject }> {
      if (output === undefined) return {};
      const bytes = Buffer.from(JSON.stringify(output));
      if (bytes.length <= mostStructured) return { value: fromJson(ValueSchema, output) };
      const id = newId("out", now());
      await outputs.append(ref.root, id, bytes);
      return { metadata: { structuredPath: `toolgate-output:${id}` } };
    },

    /** An attachment as the part names it: a small one in itself. */
    async attachment(
      { record: { ref } }: Pick<Running, "record">,
      { mime, filename, data }: Attachment,
    ): Promise<FilePart> {
      const file = { type: "file", mime, size: BigInt(data.length), ...(filename !== undefined && { filename }) };
      if (data.length <= 64 * 1024) {
        return create(FilePartSchema, { ...file, url: `data:${mime};base64,${Buffer.from(data).toString("base64")}` });
      }
      const id = newId("out", now());
      await outputs.append(ref.root, id, data);
      return create(FilePartSchema, { ...file, url: `toolgate-output:${id}` });
    },
  };
}

/** Bytes of structured output, as JSON, that a part holds. */
const mostStructured = 51_200;
