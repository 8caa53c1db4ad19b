import type { MessageInitShape } from "@bufbuild/protobuf";
import type { WorkerHelloSchema, WorkerToolSchema } from "../../gen/opencode/tool/v1/worker_pb.ts";
import { declaredTool } from "../body/declared-tool.ts";
import { declarationOf } from "../tool/define-tool.ts";
import type { LoadedCode } from "./load-code.ts";
import type { ServedTool } from "./served-tool.ts";

/** Version of the messages that this program speaks. */
const protocol = 1;

/** Declares what the process brings. */
export function helloOf(code: LoadedCode): MessageInitShape<typeof WorkerHelloSchema> {
  const { bun, node } = process.versions;
  return {
    protocol,
    sdk: bun === undefined ? `Node.js ${node}` : `Bun ${bun}`,
    tools: [...code.tools.values()].map(fileTool),
    plugins: code.plugins.map(({ name, hooks }) => ({ name, hooks: Object.keys(hooks) })),
    files: [...code.files],
    problems: [...code.problems],
  };
}

/** Declares a tool of a file. */
function fileTool({ tool, isForeign, source, file, forAgent }: ServedTool): MessageInitShape<typeof WorkerToolSchema> {
  return {
    ...declaredTool(tool),
    // The plan of a foreign tool is the default one; an approval covers its body.
    plans: declarationOf(tool).hasPlan && !isForeign,
    coversBody: isForeign,
    inits: forAgent !== undefined,
    ...{ source, file },
  };
}
