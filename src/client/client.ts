/** The public module `toolgate/client`: connects a program to a running service. */
export * from "../../gen/opencode/tool/v1/agent_service_pb.ts";
export * from "../../gen/opencode/tool/v1/credential_service_pb.ts";
export * from "../../gen/opencode/tool/v1/event_pb.ts";
export * from "../../gen/opencode/tool/v1/permission_pb.ts";
export * from "../../gen/opencode/tool/v1/permission_service_pb.ts";
export * from "../../gen/opencode/tool/v1/session_service_pb.ts";
export * from "../../gen/opencode/tool/v1/tool_pb.ts";
export * from "../../gen/opencode/tool/v1/tool_service_pb.ts";
export { pagesOf } from "../core/pages-of.ts";
export { connect, type ToolgateClient } from "./connect.ts";
export type { ConnectOptions } from "./find-server.ts";
export { findToken, type TokenRole } from "./find-token.ts";
export { CallFailed, type ClientCallOptions } from "./make-call.ts";
export type { AnswerOptions, AskOptions } from "./open-asks.ts";
export { StoreChanged } from "./resume-stream.ts";
