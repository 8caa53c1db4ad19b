import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  type AcceptedSource,
  AcceptedSourceSchema,
  type Source,
  SourceAcceptance,
  SourceKind,
  SourceSchema,
  type SourceToolSchema,
} from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import type { RecordTable } from "../../core/record-table.ts";
import { RequestError } from "../../core/request-error.ts";
import { visible } from "../../core/visible.ts";
import type { Registry, ToolProvider } from "../../tool/registry.ts";
import type { DefinedTool } from "../../tool/tool.ts";
import { digestOf, type McpDefinition } from "./mcp-definition.ts";
import { startUpstream, type Upstream, type UpstreamOpener, type UpstreamSettings } from "./upstream.ts";
import { readerName, resourceReader, upstreamTool } from "./upstream-tool.ts";

/** The MCP servers whose tools the service offers. */
export interface UpstreamSources extends ToolProvider {
  list(): Promise<Source[]>;
  /** Accepts what a server offers, if it is what the digest names. Throws `RequestError`. */
  accept(name: string, digest: string, by: string): Promise<Source>;
  /** Connects to the servers of a configuration: those that are new or changed start, those that are gone end. */
  replace(servers: readonly UpstreamServer[]): Promise<void>;
  /** Obstacles to accepted tools, and servers that offer what nobody accepted. */
  problems(): { name: string; reason: string }[];
  close(): Promise<void>;
}

/** A server of the configuration; `key` is equal for equal configurations. */
export interface UpstreamServer extends UpstreamSettings {
  readonly key: string;
  readonly opener: UpstreamOpener;
}

/** The offered tools of a server, and the reasons against the others. */
interface Offer {
  readonly upstream: Upstream;
  readonly key: string;
  /** Tools by definition; each is made once. */
  readonly made: Map<string, DefinedTool>;
  /** Problems of accepted tools, by name. */
  problems: ReadonlyMap<string, string>;
  unregister(): void;
}

/** Creates the sources; none is connected before `replace`. */
export function createUpstreamSources({
  registry,
  accepted,
  writeDiff,
  now,
  warn,
}: {
  registry: Registry;
  accepted: RecordTable<AcceptedSource>;
  writeDiff: WriteDiff;
  now(): number;
  warn(message: string, about: { name: string; reason: string }): void;
}): UpstreamSources {
  const offers = new Map<string, Offer>();
  let applied: readonly AcceptedSource[] | undefined;

  /** Offers what a server offers now and a person accepted. */
  function apply(name: string): void {
    const offer = offers.get(name);
    if (offer === undefined) return;
    offer.unregister();
    const { upstream } = offer;
    const isAccepted = acceptanceOf(acceptedOf(name));
    const problems = new Map<string, string>();
    const tools: Record<string, DefinedTool> = {};
    for (const definition of upstream.state().offered) {
      if (isAccepted(definition) !== SourceAcceptance.ACCEPTED) continue;
      try {
        if (registry.knows(definition.name) || tools[definition.name]) throw new Error(taken(definition.name));
        tools[definition.name] = toolOf(offer, definition);
      } catch (error) {
        problems.set(definition.name, error instanceof Error ? error.message : String(error));
      }
    }
    const reader = readerName(name);
    if (Object.keys(tools).length > 0 && !registry.knows(reader)) tools[reader] ??= resourceReader(upstream);
    offer.problems = problems;
    offer.unregister = registry.register(tools);
  }

  const acceptedOf = (name: string) => accepted.current().find(({ id }) => id === name);

  function start({ key, opener, ...settings }: UpstreamServer): void {
    const { name } = settings;
    const upstream = startUpstream(settings, opener, {
      now,
      changed: () => apply(name),
      warn: (reason) => warn("an MCP server does not work", { name, reason }),
    });
    offers.set(name, { upstream, key, made: new Map(), problems: new Map(), unregister: () => {} });
  }

  async function stop(name: string): Promise<void> {
    const offer = offers.get(name);
    offers.delete(name);
    offer?.unregister();
    await offer?.upstream.close();
  }

  async function describe({ upstream, problems }: Offer): Promise<Source> {
    const { name, origin } = upstream.settings;
    const { offered, ...state } = upstream.state();
    return create(SourceSchema, {
      ...state,
      ...{
        kind: SourceKind.MCP_SERVER,
        name,
        origin,
        confinement: upstream.confinement,
        memoryBytes: BigInt(await upstream.memory()),
      },
      tools: compareTools(offered, acceptedOf(name), { problems, writeDiff }),
      digest: offered.length === 0 ? "" : digestOf(offered),
    });
  }

  return {
    async refresh() {
      await Promise.all([...offers.values()].map(({ upstream }) => upstream.ready()));
      if (accepted.current() === applied) return;
      applied = accepted.current();
      for (const name of offers.keys()) apply(name);
    },
    guardProblem: () => undefined,
    list: async () => await Promise.all([...offers.keys()].sort().map((name) => describe(known(name)))),
    async accept(name, digest, by) {
      const { offered } = known(name).upstream.state();
      if (offered.length === 0) throw changedSource(name, "has not listed its tools yet");
      if (digestOf(offered) !== digest) throw changedSource(name, "does not offer what you read");
      const definitions = Object.fromEntries(offered.map(({ original, text }) => [original, text]));
      await accepted.put(create(AcceptedSourceSchema, { id: name, definitions, accepted: now(), acceptedBy: by }));
      apply(name);
      return await describe(known(name));
    },
    async replace(servers) {
      const kept = servers.filter(({ name, key }) => offers.get(name)?.key === key);
      const names = new Set(kept.map(({ name }) => name));
      await Promise.all([...offers.keys()].filter((name) => !names.has(name)).map(stop));
      for (const server of servers) if (!names.has(server.name)) start(server);
    },
    problems: () =>
      [...offers].flatMap(([name, offer]) => reasonsOf(offer, acceptedOf(name)).map((reason) => ({ name, reason }))),
    close: async () => void (await Promise.all([...offers.keys()].map(stop))),
  };

  function known(name: string): Offer {
    const offer = offers.get(name);
    if (offer !== undefined) return offer;
    throw new RequestError(
      ErrorReason.NO_SUCH_SOURCE,
      `there is no MCP server "${name}" in the configuration; list them with \`toolgate sources\``,
      { source: name },
    );
  }
}

function toolOf({ upstream, made }: Offer, definition: McpDefinition): DefinedTool {
  const tool = made.get(definition.text) ?? upstreamTool(upstream, definition);
  made.set(definition.text, tool);
  return tool;
}

function reasonsOf({ upstream, problems }: Offer, record: AcceptedSource | undefined): string[] {
  const { problem, offered } = upstream.state();
  const { name } = upstream.settings;
  const acceptance = acceptanceOf(record);
  const waiting = offered.filter((definition) => acceptance(definition) !== SourceAcceptance.ACCEPTED);
  const named = waiting.slice(0, maxNamed).map((definition) => definition.name);
  return [
    ...(problem === "" ? [] : [problem]),
    ...[...problems].map(([tool, reason]) => `${tool} is not offered: ${reason}`),
    ...(waiting.length === 0
      ? []
      : [
          `${waiting.length} tools are new or changed and not offered: ${named.join(", ")}. Read them with \`toolgate sources ${name}\`, then \`toolgate upstream accept ${name}\``,
        ]),
  ];
}

function changedSource(name: string, fact: string): RequestError {
  return new RequestError(
    ErrorReason.SOURCE_CHANGED,
    `${name} ${fact}; read it again with \`toolgate sources ${name}\``,
    { source: name },
  );
}

const taken = (name: string) =>
  `another tool has the name ${name}; rename the table of the server in the configuration, or the other tool`;
const maxNamed = 5;

/** Writes the change of a text as a unified diff; `before` is undefined for a new one. */
type WriteDiff = (name: string, before: string | undefined, after: string) => string;

/** Returns the function that compares a tool with what was accepted. */
function acceptanceOf(record: AcceptedSource | undefined) {
  return ({ original, text }: McpDefinition): SourceAcceptance => {
    const before = acceptedText(record, original);
    if (before === undefined) return SourceAcceptance.NEW;
    return before === text ? SourceAcceptance.ACCEPTED : SourceAcceptance.CHANGED;
  };
}

/** Compares what a server offers with what was accepted. */
function compareTools(
  offered: readonly McpDefinition[],
  record: AcceptedSource | undefined,
  { problems, writeDiff }: { problems: ReadonlyMap<string, string>; writeDiff: WriteDiff },
): MessageInitShape<typeof SourceToolSchema>[] {
  const acceptance = acceptanceOf(record);
  const described = (name: string, before: string | undefined, after: string | undefined) => {
    const [accepted, definition] = [shownForm(before), shownForm(after)];
    const lines = (text: string) => (text === "" ? "" : `${text}\n`);
    return {
      ...{ name, accepted, definition },
      diff: accepted === definition ? "" : writeDiff(name, lines(accepted) || undefined, lines(definition)),
    };
  };
  const present = offered.map((definition) => ({
    ...described(definition.name, acceptedText(record, definition.original), definition.text),
    acceptance: acceptance(definition),
    problem: problems.get(definition.name) ?? "",
  }));
  const originals = new Set(offered.map(({ original }) => original));
  const gone = Object.entries(record?.definitions ?? {})
    .filter(([original]) => !originals.has(original))
    .map(([original, text]) => ({ ...described(original, text, undefined), acceptance: SourceAcceptance.GONE }));
  return [...present, ...gone];
}

/** Returns the accepted definition of a tool. A tool may have any name, also that of a method of objects. */
function acceptedText(record: AcceptedSource | undefined, original: string): string | undefined {
  return record && Object.hasOwn(record.definitions, original) ? record.definitions[original] : undefined;
}

/** Indents canonical JSON, with invisible characters escaped, for people. */
function shownForm(text = ""): string {
  return text === "" ? "" : visible(JSON.stringify(JSON.parse(text), null, 2));
}
