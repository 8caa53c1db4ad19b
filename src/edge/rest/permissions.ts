import { z } from "zod";
import { PermissionReply, type PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { unknownPermission } from "../../approval/answer-refusals.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { workspaceRoot } from "../../core/workspace-root.ts";
import { type RestCall, type RestRoute, restBody } from "./route.ts";
import { permissionJson, questionJson } from "./shapes.ts";

const replies = { once: PermissionReply.ONCE, always: PermissionReply.ALWAYS, reject: PermissionReply.REJECT } as const;
const reply = z.enum(["once", "always", "reject"]);
const oldAnswer = z.object({ response: reply });
const answer = z.object({ reply, message: z.string().default("") });
const questionAnswer = z.object({ answers: z.array(z.array(z.string())) });

/** Routes with which approvers list and answer permission requests. */
export const permissionRoutes: readonly RestRoute[] = [
  {
    method: "GET",
    path: "/permission",
    run: async (call) => (await openRequests(call)).filter((request) => !isQuestion(request)).map(permissionJson),
  },
  {
    method: "POST",
    path: "/permission/:request/reply",
    run(call) {
      const { reply, message } = restBody(call, answer);
      return respond(call, { reply: replies[reply], message });
    },
  },
  {
    method: "POST",
    path: "/session/:id/permissions/:request",
    run: (call) => respond(call, { reply: replies[restBody(call, oldAnswer).response] }, call.part("id")),
  },
  {
    method: "GET",
    path: "/question",
    run: async (call) => (await openRequests(call)).filter(isQuestion).map(questionJson),
  },
  {
    method: "POST",
    path: "/question/:request/reply",
    run(call) {
      const answers = restBody(call, questionAnswer).answers.map((values) => ({ values }));
      return respond(call, { reply: PermissionReply.ONCE, answers });
    },
  },
  {
    method: "POST",
    path: "/question/:request/reject",
    run: (call) => respond(call, { reply: PermissionReply.REJECT }),
  },
];

const isQuestion = ({ question }: PermissionRequest) => question.length > 0;

/** Lists the open requests, of one workspace root if the request names a directory. */
async function openRequests({ api, signal, workspace, feed }: RestCall): Promise<PermissionRequest[]> {
  const pages = await Array.fromAsync(pagesOf((page) => api.permissions.listPermissions(page, { signal })));
  const found: PermissionRequest[] = [];
  for (const request of pages.flatMap(({ permissions }) => permissions)) {
    const session = workspace === undefined ? undefined : (await feed.sessions.find(request.sessionId))?.session;
    if (workspace === undefined || workspaceRoot(session?.workspace ?? "") === workspace) found.push(request);
  }
  return found;
}

/** Answers the request that the path names. The older form names its session as well. */
async function respond(
  { api, part, signal }: RestCall,
  response: { reply: PermissionReply; message?: string; answers?: { values: string[] }[] },
  expectedSession?: string,
): Promise<true> {
  const permissionId = part("request");
  const { permission } = await api.permissions.getPermission({ permissionId }, { signal });
  const sessionId = permission?.sessionId ?? "";
  if (expectedSession !== undefined && expectedSession !== sessionId) throw unknownPermission(permissionId);
  await api.permissions.respondToPermission({ ...response, sessionId, permissionId }, { signal });
  return true;
}
