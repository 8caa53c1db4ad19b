import type { Client } from "@connectrpc/connect";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { ToolService } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { maxChangeBytes, readWhole } from "../../view/read-output.ts";
import { exitCodes } from "../exit-codes.ts";
import { CommandError } from "../failure/failure.ts";

/** Checks if a request holds only the beginning of its change. */
export function isChangeCut({ preview }: Pick<PermissionRequest, "preview">): boolean {
  return (preview?.url ?? "") !== "";
}

/** Reads all of the change of a request; its text is not safe for a terminal yet. */
export async function readWholeChange(
  server: { tools: Pick<Client<typeof ToolService>, "readToolOutput"> },
  { sessionId, preview }: Pick<PermissionRequest, "sessionId" | "preview">,
): Promise<string> {
  const bytes = await readWhole(server, { sessionId, output: preview?.url ?? "" }, maxChangeBytes);
  if (bytes.length < maxChangeBytes) return new TextDecoder().decode(bytes);
  throw new CommandError(
    `the change is larger than ${maxChangeBytes / 1024 / 1024} MiB, too large to be shown whole`,
    "reject the request, and ask for smaller changes",
    exitCodes.usage,
  );
}
