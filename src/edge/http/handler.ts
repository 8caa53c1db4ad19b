import type { IncomingMessage, ServerResponse } from "node:http";
import type { Http2ServerRequest, Http2ServerResponse } from "node:http2";

/** A request by either version of HTTP. */
export type Request = IncomingMessage | Http2ServerRequest;

/** A response by either version of HTTP. */
export type Response = ServerResponse | Http2ServerResponse;

/** Answers a request. */
export type Handler = (request: Request, response: Response) => void;

/** Sends the refusal of a request that reached no rpc; `httpStatus` replaces the status that follows from the error. */
export type Refuse = (error: unknown, request: Request, response: Response, httpStatus?: number) => void;
