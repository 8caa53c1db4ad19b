import { type Client, ConnectError } from "@connectrpc/connect";
import { Shown } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionService } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { ToolService } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { type FileText, fileText } from "../../view/file-text.ts";
import { maxChangeBytes, readWhole } from "../../view/read-output.ts";
import { isRequestCut, viewLines, withWholeInput } from "../../view/view-lines.ts";
import { CommandError, exitCodes } from "../failure/command-error.ts";

/** Reads what a request holds only in part, of its input and of its change; the texts are not safe for a terminal yet. */
export async function readWholeRequest(
  server: { tools: Pick<Client<typeof ToolService>, "readToolOutput"> },
  ask: PermissionRequest,
): Promise<PermissionRequest> {
  const request = await withWholeInput(server, ask);
  const { sessionId, preview } = request;
  if (!preview || preview.url === "") return request;
  const bytes = await readWhole(server, { sessionId, output: preview.url }, maxChangeBytes);
  if (bytes.length < maxChangeBytes)
    return { ...request, preview: { ...preview, diff: new TextDecoder().decode(bytes), url: "" } };
  throw new CommandError(
    `the change is larger than ${maxChangeBytes / 1024 / 1024} MiB, too large to be shown whole`,
    "reject the request, and ask for smaller changes",
    exitCodes.usage,
  );
}

/** The texts of the files that a request names, by path. */
export type FileTexts = ReadonlyMap<string, FileText>;

/** Reads the texts of the files that a request names; the texts are not safe for a terminal yet. */
export async function readFileTexts(
  { permissions }: { permissions: Pick<Client<typeof PermissionService>, "readBoundFile"> },
  ask: PermissionRequest,
): Promise<FileTexts> {
  const paths = viewLines(ask).flatMap(({ path }) => path ?? []);
  const found = paths.map(async (path): Promise<[string, FileText]> => {
    const read = permissions.readBoundFile({ permissionId: ask.id, path });
    return [path, await read.then(fileText, (error) => ({ text: "", unread: ConnectError.from(error).rawMessage }))];
  });
  return new Map(await Promise.all(found));
}

/** Returns how much of a request a screen shows that draws it with these texts. */
export function shownWith(ask: PermissionRequest, texts: FileTexts): Shown {
  const isPart = isRequestCut(ask) || [...texts.values()].some(({ unread }) => unread !== "");
  return isPart ? Shown.PARTIAL : Shown.WHOLE;
}
