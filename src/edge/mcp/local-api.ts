import { create } from "@bufbuild/protobuf";
import type { CallOptions, Client } from "@connectrpc/connect";
import { PermissionService } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../../gen/opencode/tool/v1/session_service_pb.ts";
import { ToolService } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { checkRole, rolesFor } from "../api/access.ts";
import type { Failures } from "../api/failures.ts";
import { notServed } from "../api/request-failure.ts";
import {
  createEdgeContext,
  createMessageCheck,
  type EdgeContext,
  type EdgeLimits,
  nameOfRpc,
  ResponseMetadata,
  type Rpc,
  rpcsOf,
} from "../api/rpc.ts";
import type { Services } from "../api/services.ts";
import { toConnectError } from "../rpc/errors.ts";

/** Sender of a request: its principal and the other end of its connection. */
export type LocalSender = Pick<EdgeContext, "principal" | "peer">;

/** The rpcs that take one message, by service. */
export interface LocalApi {
  readonly tools: Client<typeof ToolService>;
  readonly sessions: Client<typeof SessionService>;
  readonly permissions: Client<typeof PermissionService>;
}

/** Options of direct access to the services. */
export interface LocalApiOptions {
  services: Services;
  failures: Failures;
  limits: EdgeLimits;
}

/**
 * Creates access to the rpcs that take one message for principals whose requests arrive by another protocol: with the checks of roles and
 * messages, and the failures, that a client of the rpcs would meet.
 */
export function createLocalApi({ services, failures, limits }: LocalApiOptions): (sender: LocalSender) => LocalApi {
  const checkMessage = createMessageCheck();
  const rpcs = {
    tools: rpcsOf(ToolService, services.tools),
    sessions: rpcsOf(SessionService, services.sessions),
    permissions: rpcsOf(PermissionService, services.permissions),
  };

  function callable({ method, kind, run }: Rpc, { principal, peer }: LocalSender) {
    const name = nameOfRpc(method);

    /** Checks a request and returns its message and context. */
    function admit(init: Record<string, unknown>, { signal = never, headers: given = {} }: CallOptions) {
      const headers = new Headers(given);
      signal.throwIfAborted();
      checkRole(principal, rolesFor(method), name);
      const message = create(method.input, init);
      checkMessage(method.input, message);
      const response = new ResponseMetadata();
      return [message, createEdgeContext({ principal, peer, signal, headers, response, limits })] as const;
    }
    const failure = (error: unknown, signal = never) => toConnectError(failures.failureOf(error, name, signal));

    if (kind === "server_streaming") {
      return async function* (init: Record<string, unknown>, options: CallOptions = {}) {
        try {
          for await (const message of run(...admit(init, options))) yield create(method.output, message);
        } catch (error) {
          throw failure(error, options.signal);
        }
      };
    }
    return async (init: Record<string, unknown>, options: CallOptions = {}) => {
      try {
        if (kind !== "unary") throw notServed("unimplemented", `${name} takes a stream`);
        return create(method.output, await run(...admit(init, options)));
      } catch (error) {
        throw failure(error, options.signal);
      }
    };
  }

  return (sender) => ({
    // The type of each function follows from the method's descriptor, which TypeScript cannot relate by name here.
    tools: byName(rpcs.tools, (rpc) => callable(rpc, sender)) as unknown as Client<typeof ToolService>,
    sessions: byName(rpcs.sessions, (rpc) => callable(rpc, sender)) as unknown as Client<typeof SessionService>,
    permissions: byName(rpcs.permissions, (rpc) => callable(rpc, sender)) as unknown as Client<
      typeof PermissionService
    >,
  });
}

const never = new AbortController().signal;

function byName<T>(rpcs: readonly Rpc[], make: (rpc: Rpc) => T): Record<string, T> {
  return Object.fromEntries(rpcs.map((rpc) => [rpc.method.localName, make(rpc)]));
}
