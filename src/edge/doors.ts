import type { Authenticate } from "./api/authenticate.ts";
import { hookDoor } from "./hooks/claude-door.ts";
import { consoleDoor } from "./http/console-files.ts";
import type { Refuse } from "./http/handler.ts";
import type { Mount } from "./http/mounts.ts";
import { healthDoor, metricsDoor } from "./http/probes.ts";
import { type SignInDoorOptions, signInDoor } from "./http/sign-in.ts";
import { type McpDoorOptions, mcpDoor } from "./mcp/mcp-door.ts";
import { type RestDoorOptions, restDoor } from "./rest/rest-door.ts";
import { type RpcDoorOptions, rpcDoor } from "./rpc/rpc-door.ts";

/** Options of all doors. */
export interface DoorOptions
  extends RpcDoorOptions,
    McpDoorOptions,
    RestDoorOptions,
    Omit<SignInDoorOptions, "limits"> {
  authenticate: Authenticate;
  /** Takes the tokens of agents' runs as well. */
  authenticateMcp: Authenticate;
  refuse: Refuse;
  /** Returns the metrics in the text format of Prometheus. */
  metrics: () => string | Promise<string>;
  /** Directory of the built console; it may be absent. */
  consoleDirectory: string;
}

/**
 * Lists the doors of the edge. A door is its mounts on the listener and an adapter that turns a request into a message and an
 * EdgeContext for the services in api/. A new door is a function like these and a line here.
 */
export function openDoors(options: DoorOptions): Mount[] {
  return [
    ...rpcDoor(options),
    ...mcpDoor({ ...options, authenticate: options.authenticateMcp }),
    ...hookDoor(options),
    ...restDoor(options),
    ...healthDoor(options),
    ...metricsDoor(options),
    ...signInDoor(options),
    ...consoleDoor(options.consoleDirectory),
  ];
}
