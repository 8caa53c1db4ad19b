import { fromJson, type JsonObject, type JsonValue } from "@bufbuild/protobuf";
import { type Value, ValueSchema } from "@bufbuild/protobuf/wkt";
import type { CallView, Preview } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { createCallView, isViewCut, type ShownCall } from "../approval/permission-request.ts";
import { newId } from "../core/ids.ts";
import { canonicalJson } from "../core/json.ts";
import { cutPreview } from "./decide.ts";
import type { Engine } from "./engine.ts";
import { createWindow } from "./output.ts";
import { ensureRecorded, type Running } from "./running.ts";
import { inputOf } from "./state.ts";

/** Bytes of structured output (as JSON) or of an error text that a part may hold. What is larger spills to the output store. */
const maxInPart = 51_200;

/** Stores bytes as an output of the call's session tree, and returns its name. */
export async function storeOutput(engine: Engine, call: Running, bytes: Uint8Array): Promise<string> {
  return `toolgate-output:${await storeBytes(engine, call, bytes)}`;
}

/** Stores bytes as an output of the call's session tree, and returns its id. */
export async function storeBytes({ outputs, store }: Engine, call: Running, bytes: Uint8Array): Promise<string> {
  await ensureRecorded(call);
  const id = newId("out", store.now());
  await outputs.append(call.record.ref.root, id, bytes);
  return id;
}

/** Returns the preview with its diff cut to what an ask holds; a diff that was cut is stored whole, under the preview's url. */
export async function storePreview(
  { outputs, store }: Engine,
  { record }: Running,
  preview: Preview,
): Promise<Preview> {
  const id = newId("out", store.now());
  const cut = cutPreview(preview, `toolgate-output:${id}`);
  if (cut.url !== "") await outputs.append(record.ref.root, id, Buffer.from(preview.diff));
  return cut;
}

/** Builds what approvers see of a call; where the view has only the beginning of a value, the whole input is stored under its url. */
export async function storeView(
  { outputs, store }: Engine,
  { record: { part, ref } }: Pick<Running, "record">,
  shown: Omit<ShownCall, "tool" | "input">,
): Promise<CallView> {
  const input = inputOf(part);
  const view = createCallView({ ...shown, tool: part.tool, input });
  if (!isViewCut(view)) return view;
  const id = newId("out", store.now());
  await outputs.append(ref.root, id, Buffer.from(canonicalJson(input)));
  return { ...view, inputUrl: `toolgate-output:${id}` };
}

/** Returns structured output for the part; a value that is too large is stored, and the metadata names it. */
export async function storeStructured(
  engine: Engine,
  call: Running,
  value: JsonValue | undefined,
): Promise<{ value?: Value; metadata?: JsonObject }> {
  if (value === undefined) return {};
  const bytes = Buffer.from(JSON.stringify(value));
  if (bytes.length <= maxInPart) return { value: fromJson(ValueSchema, value) };
  return { metadata: { structuredPath: await storeOutput(engine, call, bytes) } };
}

/** Returns an error text for the model; a text that is too long is stored whole and cut in the middle. */
export async function storeError(engine: Engine, call: Running, text: string): Promise<string> {
  const bytes = Buffer.from(text);
  const window = createWindow({ end: "both", lines: 2_000, bytes: maxInPart });
  window.push(bytes);
  return window.isOver() ? window.bound(await storeOutput(engine, call, bytes)).text : text;
}
