import { fromJson, type JsonObject, type JsonValue } from "@bufbuild/protobuf";
import { type Value, ValueSchema } from "@bufbuild/protobuf/wkt";
import type { Preview } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { newId } from "../core/ids.ts";
import { createWindow } from "./output-window.ts";
import { beginning } from "./planning.ts";
import type { OutputStore } from "./ports.ts";
import type { Running } from "./running.ts";

/** Keeps what is too large for a part or an ask beside it, in the output store. */
export function createKept({ outputs, now }: { outputs: Pick<OutputStore, "append">; now(): number }) {
  /** Keeps bytes as an output of the call's session tree, and returns its name. */
  async function output({ record: { ref } }: Pick<Running, "record">, bytes: Uint8Array): Promise<string> {
    const id = newId("out", now());
    await outputs.append(ref.root, id, bytes);
    return `toolgate-output:${id}`;
  }

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
      call: Pick<Running, "record">,
      value: JsonValue | undefined,
    ): Promise<{ value?: Value; metadata?: JsonObject }> {
      if (value === undefined) return {};
      const bytes = Buffer.from(JSON.stringify(value));
      if (bytes.length <= maxReported) return { value: fromJson(ValueSchema, value) };
      return { metadata: { structuredPath: await output(call, bytes) } };
    },

    /** An error as the model is told it; one that is too long is stored whole, and what is told says where. */
    async error(call: Pick<Running, "record">, text: string): Promise<string> {
      const bytes = Buffer.from(text);
      const window = createWindow({ end: "both", lines: 2_000, bytes: maxReported });
      window.push(bytes);
      return window.isOver() ? window.bound(await output(call, bytes)).text : text;
    },

    output,
  };
}

/** Bytes of structured output, as JSON, or of an error that a part holds. */
const maxReported = 51_200;
