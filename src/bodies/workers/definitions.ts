import { createHash } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import {
  type RegisteredTool,
  RegisteredToolSchema,
  ToolRegistration,
  type WorkerHello,
  type WorkerTool,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { type WorkerDeclaration, WorkerDeclarationSchema } from "../../../gen/opencode/tool/v1/worker_service_pb.ts";
import type { Logger } from "../../core/logger.ts";
import type { WorkerRights } from "../../core/principal.ts";
import type { RecordTable } from "../../core/record-table.ts";
import { byName, type Registry } from "../../tool/registry.ts";
import type { Tool } from "../../tool/tool.ts";
import { declarationProblem, type IsClosed, textOfDeclaration } from "./declared-tool.ts";
import { type RemoteHost, remoteTool } from "./remote-tool.ts";

/** Definitions of the tools of workers, and those of them that serve. */
export type Definitions = ReturnType<typeof createDefinitions>;

/** Declarations of the workers of a token that share a name. */
export interface DeclaredFleet {
  worker: string;
  principal: string;
  definitions: { id: string; name: string }[];
  /** Time at which one of them was last seen, in ms since the epoch. */
  seen: number;
}

/** The principal of a worker, and the workspaces that it serves. */
export interface DeclaringWorker {
  principal: string;
  rights: WorkerRights;
  workspaces: ReadonlySet<string>;
}

/** Parts with which tools of workers are made and registered. */
export interface DefinitionsParts {
  registry: Pick<Registry, "get" | "register" | "refresh">;
  declarations: RecordTable<WorkerDeclaration>;
  /** Returns the rights of a principal now; undefined if its token is not valid any more. */
  rightsOf(principal: string): WorkerRights | undefined;
  isClosed: IsClosed;
  /** Returns the part of a tool that finds its workers. */
  hostOf(definitionId: () => string, declared: WorkerTool, worker: string, workspace: string): RemoteHost;
  /** True if a worker is connected here that takes calls of a definition. */
  isServed(definitionId: string, workspace: string): boolean;
  now(): number;
  log: Logger;
}

/** A tool of a declaration. */
interface Definition {
  readonly id: string;
  readonly name: string;
  readonly principal: string;
  readonly record: WorkerDeclaration;
  /** By workspace. */
  readonly tools: ReadonlyMap<string, Tool>;
}

/** State of the definitions of one replica. */
interface State extends DefinitionsParts {
  /** Definitions by the ID of their declaration and the rights of its token. */
  made: ReadonlyMap<string, readonly Definition[]>;
  definitions: readonly Definition[];
  byId: ReadonlyMap<string, readonly Definition[]>;
  /** The tools that serve, by workspace and name. */
  serving: ReadonlyMap<string, Tool>;
  unregister: readonly (() => void)[];
}

/** Creates the definitions, with those that are stored. */
export function createDefinitions(parts: DefinitionsParts) {
  const state: State = {
    ...parts,
    ...{ made: new Map(), definitions: [], byId: new Map(), serving: new Map(), unregister: [] },
  };
  return {
    /**
     * Registers the tools of a worker in workspaces and stores what it declared. Returns the outcome for each tool; a tool that is
     * refused does not prevent the others.
     */
    declare: (worker: DeclaringWorker, hello: WorkerHello): Promise<RegisteredTool[]> => declare(state, worker, hello),
    /** Returns the tool of a definition in a workspace root, also while another definition serves under its name. */
    // Workers of one definition may have declared it for other workspaces.
    tool: (definitionId: string, workspace: string): Tool | undefined =>
      state.byId
        .get(definitionId)
        ?.find(({ tools }) => tools.has(workspace))
        ?.tools.get(workspace),
    /** Selects again which definitions serve: workers came or went, or other replicas stored declarations. */
    update: (): void => update(state),
    /**
     * Stores that the workers of a principal with these definitions were seen now, unless that is stored of the last `minAgeMs`;
     * forgets what was not seen for long.
     */
    seen: (principal: string, definitionIds: ReadonlySet<string>, minAgeMs = 0): Promise<void> =>
      storeSeen(state, principal, definitionIds, minAgeMs),
    /** Returns the fleets of the stored declarations. */
    fleets: (): DeclaredFleet[] => fleetsOf(state),
    /** Returns the time at which workers with a definition were last seen, in ms since the epoch; 0 if it is not known. */
    lastSeen: (definitionId: string): number =>
      Math.max(0, ...(state.byId.get(definitionId) ?? []).map(({ record }) => record.seen)),
  };
}

/** Makes the tools of stored declarations; those whose token is not valid any more are left out. */
function refresh(state: State): void {
  const made = new Map<string, readonly Definition[]>();
  state.definitions = state.declarations.current().flatMap((record) => {
    const rights = state.rightsOf(record.principal);
    if (rights === undefined) return [];
    const key = `${record.id} ${JSON.stringify(rights)}`;
    const known = state.made.get(key) ?? record.tools.flatMap((declared) => define(state, record, declared, rights));
    made.set(key, known);
    return known;
  });
  state.made = made;
  state.byId = Map.groupBy(state.definitions, ({ id }) => id);
}

function define(
  { hostOf, isClosed, log }: State,
  record: WorkerDeclaration,
  declared: WorkerTool,
  rights: WorkerRights,
): Definition[] {
  const { principal, worker, workspaces } = record;
  try {
    if (declarationProblem(declared, rights, isClosed) !== undefined) return [];
    const tools = workspaces.map((workspace) => {
      const host = hostOf(() => tool.definition.definitionId, declared, worker, workspace);
      const tool: Tool = remoteTool({ declared, worker, rights }, host);
      return [workspace, tool] as const;
    });
    const id = tools[0]?.[1].definition.definitionId ?? "";
    return [{ id, name: declared.name, principal, record, tools: new Map(tools) }];
  } catch (error) {
    log.warn("a stored tool of a worker cannot be used", { error, tool: declared.name, principal });
    return [];
  }
}

/** Registers the definitions that serve, if others do now. */
function update(state: State): void {
  refresh(state);
  const next = new Map<string, Tool>();
  for (const [name, same] of Map.groupBy(state.definitions, ({ name }) => name)) {
    for (const workspace of new Set(same.flatMap(({ tools }) => [...tools.keys()]))) {
      const tool = selected(state, same, workspace)?.tools.get(workspace);
      if (tool) next.set(`${workspace} ${name}`, tool);
    }
  }
  if (next.size === state.serving.size && [...next].every(([key, tool]) => state.serving.get(key) === tool)) return;
  for (const each of state.unregister) each();
  state.serving = next;
  const byWorkspace = Map.groupBy(next, ([key]) => key.slice(0, key.indexOf(" ")));
  state.unregister = [...byWorkspace].map(([workspace, tools]) =>
    state.registry.register(byName(tools.map(([, tool]) => tool)), workspace, rank),
  );
}

/** Returns the definition that serves under a name: of those with a connected worker the one of the highest generation. */
function selected({ isServed }: State, same: readonly Definition[], workspace: string): Definition | undefined {
  const able = same
    .filter(({ tools }) => tools.has(workspace))
    .map((definition) => ({ definition, isReady: isServed(definition.id, workspace) }));
  return able.toSorted(
    (a, b) =>
      Number(b.isReady) - Number(a.isReady) ||
      Number(b.definition.record.generation - a.definition.record.generation) ||
      a.definition.record.declared - b.definition.record.declared,
  )[0]?.definition;
}

async function declare(state: State, worker: DeclaringWorker, hello: WorkerHello): Promise<RegisteredTool[]> {
  await state.declarations.refresh();
  for (const workspace of worker.workspaces) await state.registry.refresh(workspace);
  refresh(state);
  const own = state.definitions.filter(({ principal }) => principal === worker.principal);
  const names = new Set(own.map(({ name }) => name));
  const accepted: WorkerTool[] = [];
  const outcomes = hello.tools.map((declared) => {
    const outcome = outcomeOf(state, declared, worker, hello.worker, { names, accepted });
    if (outcome.registration === ToolRegistration.REGISTERED) accepted.push(declared);
    names.add(declared.name);
    return outcome;
  });
  await store(state, worker, hello, accepted);
  return outcomes;
}

function outcomeOf(
  state: State,
  declared: WorkerTool,
  worker: DeclaringWorker,
  fleet: string,
  { names, accepted }: { names: ReadonlySet<string>; accepted: readonly WorkerTool[] },
): RegisteredTool {
  const { name } = declared;
  const refused = (registration: ToolRegistration, message: string, definitionId = "") =>
    create(RegisteredToolSchema, { name, definitionId, registration, message });
  const invalid = declarationProblem(declared, worker.rights, state.isClosed);
  if (invalid !== undefined) return refused(invalid.registration, invalid.message);
  const owner = takenBy(state, name, worker);
  if (owner !== undefined)
    return refused(ToolRegistration.NAME_TAKEN, `the name "${name}" belongs to ${owner}; choose another one`);
  if (accepted.some((other) => other.name === name))
    return refused(ToolRegistration.INVALID, `it declares "${name}" twice; declare each tool once`);
  if (!names.has(name) && names.size >= maxToolNames)
    return refused(ToolRegistration.INVALID, `the token brings ${maxToolNames} tools, the limit`);
  try {
    const host = state.hostOf(() => "", declared, fleet, "");
    const { definitionId } = remoteTool({ declared, worker: fleet, rights: worker.rights }, host).definition;
    const { pin } = worker.rights;
    if (pin.length === 0 || pin.includes(definitionId))
      return create(RegisteredToolSchema, { name, definitionId, registration: ToolRegistration.REGISTERED });
    const fact = `the definition ${definitionId} of "${name}" is not pinned by its token`;
    return refused(ToolRegistration.NOT_YOURS, `${fact}; add it to pin, or declare a pinned one`, definitionId);
  } catch (error) {
    return refused(ToolRegistration.INVALID, error instanceof Error ? error.message : String(error));
  }
}

/** Finds out who else has a name. */
function takenBy(
  { definitions, registry }: State,
  name: string,
  { principal, workspaces }: DeclaringWorker,
): string | undefined {
  const other = definitions.find((each) => each.name === name && each.principal !== principal);
  if (other !== undefined) return `the token "${other.principal}"`;
  const isOwn = (tool: Tool | undefined) => tool === undefined || tool.remote !== undefined;
  return [...workspaces].some((workspace) => !isOwn(registry.get(name, workspace))) ? "the service" : undefined;
}

function fleetsOf({ definitions }: State): DeclaredFleet[] {
  const byFleet = Map.groupBy(definitions, ({ record: { worker, principal } }) => `${worker} ${principal}`);
  return [...byFleet.values()].flatMap((own) => {
    const [first] = own;
    if (first === undefined) return [];
    const { worker, principal } = first.record;
    return { worker, principal, definitions: own, seen: Math.max(...own.map(({ record }) => record.seen)) };
  });
}

/** Stores what a worker declared, unless it is stored. */
async function store(
  { declarations, now }: State,
  { principal, workspaces }: DeclaringWorker,
  { worker, generation }: WorkerHello,
  tools: readonly WorkerTool[],
): Promise<void> {
  const texts = tools.map(textOfDeclaration).toSorted();
  const text = JSON.stringify([principal, worker, String(generation), [...workspaces].toSorted(), texts]);
  const id = createHash("sha256").update(text).digest("hex").slice(0, 32);
  if (tools.length === 0 || declarations.current().some((record) => record.id === id)) return;
  const declared = now();
  await declarations.put(
    create(WorkerDeclarationSchema, {
      ...{ id, principal, worker, generation, declared, seen: declared },
      workspaces: [...workspaces],
      tools: [...tools],
    }),
  );
  const own = declarations.current().filter((record) => record.principal === principal);
  for (const old of own.toSorted((a, b) => b.seen - a.seen).slice(maxDeclarations)) await declarations.remove(old.id);
}

/** Stores that workers were seen now, and forgets what was not seen for long. */
async function storeSeen(
  { declarations, definitions, now }: State,
  principal: string,
  definitionIds: ReadonlySet<string>,
  minAgeMs: number,
): Promise<void> {
  for (const record of declarations.current()) {
    const isDefined = definitions.some((each) => each.record.id === record.id && definitionIds.has(each.id));
    const isOwn = record.principal === principal && isDefined;
    if (isOwn && record.seen + minAgeMs > now()) continue;
    if (isOwn) await declarations.put(create(WorkerDeclarationSchema, { ...record, seen: now() }));
    else if (record.seen + memoryMs < now()) await declarations.remove(record.id);
  }
}

/** Workers win over no other source of tools. */
const rank = -1;
const memoryMs = 30 * 86_400_000;
const maxDeclarations = 100;
const maxToolNames = 200;
