import { isAbsolute } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import type * as z from "zod";
import type { Ask } from "../../core/ask.ts";
import { ToolFailure } from "../../tool/errors.ts";
import type { ForeignPlace } from "../../tool/foreign.ts";
import { externalAsks } from "../../tool/path-asks.ts";
import type { Plan, PlanContext, Tool } from "../../tool/tool.ts";
import type { PathHandle } from "../../tool/workspace.ts";

/** Plan of an agent's own tool, in terms of the permissions of ours. */
export interface Mapping {
  /** Permissions that it asks. */
  permissions: readonly string[];
  input: z.ZodType;
  readOnly?: boolean;
  /** Part of a long output that is shown. */
  keep?: Partial<Tool["keep"]>;
  plan(input: unknown, at: Place): Promise<Plan> | Plan;
}

/** Makes a mapping; `plan` gets input that fits the schema. */
export function mapping<Input extends z.ZodType>(
  made: Omit<Mapping, "plan"> & { input: Input; plan(input: z.output<Input>, at: Place): Promise<Plan> | Plan },
): Mapping {
  return made as Mapping;
}

/** Context of planning an agent's own tool. */
export interface Place extends PlanContext, ForeignPlace {
  /** Resolves a path of the input against the agent's working directory. */
  resolve(path: string): Promise<PathHandle>;
  /** Asks about a file or directory. */
  asks(permission: string, path: PathHandle, metadata?: JsonObject): Ask[];
  /** Asks about something in a directory, which asks too if it lies outside the workspace. */
  asksIn(directory: PathHandle, ask: Ask): Ask[];
}

const unproven = "may lead elsewhere through a link: the host did not prove that the service sees the same files";

/** Creates the context. Where links cannot be followed, everything about files asks, whatever rules allow. */
export function placeOf(ctx: PlanContext, place: ForeignPlace): Place {
  const { workspace } = ctx;
  const cautious = (ask: Ask): Ask => (place.isDiskShared ? ask : { ...ask, alwaysAsk: unproven });
  return {
    ...ctx,
    ...place,
    async resolve(path) {
      if (path.startsWith("~")) {
        throw new ToolFailure(`${path} begins with ~, which the service cannot resolve for you. Name the whole path.`);
      }
      return await workspace.resolve(isAbsolute(path) ? path : `${place.directory}/${path}`);
    },
    asks: (permission, path, metadata) => path.asks(permission, metadata).map(cautious),
    asksIn: (directory, ask) => [...externalAsks({ ...directory, isDirectory: true }), ask].map(cautious),
  };
}
