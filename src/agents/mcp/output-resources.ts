import { type ReadResourceResult, ResourceNotFoundError } from "@modelcontextprotocol/server";
import type { ReadToolOutputResponse } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { reasonOf, type ToolgateApi } from "./toolgate-api.ts";

const scheme = "toolgate-output:";
/** Bytes of text that are returned where the URI names no range: the bound of output for a model. */
const defaultTextBytes = 51_200;
/** Maximum size of a file that is returned whole. */
const maxFileBytes = 8_388_608;
const maxRangeBytes = 1_048_576;

/** Templates of the resources that this server has. */
export const outputTemplates = [
  {
    uriTemplate: `${scheme}{id}{?offset,limit,session}`,
    name: "output",
    description:
      "The whole output of a call, or a file that it returned: `limit` bytes from `offset`. Text without a range begins at 0 and " +
      `has at most ${defaultTextBytes} bytes; \`_meta["toolgate/next"]\` is the URI of what follows.`,
  },
];

/** Returns the URI of an output; one of another session names that session. */
export function outputUri(output: string, sessionId: string, ownSessionId: string): string {
  return sessionId === ownSessionId ? output : `${output}?session=${sessionId}`;
}

/** Reads an output, or a range of it. */
export async function readOutputResource(
  { tools }: ToolgateApi,
  uri: string,
  ownSessionId: string,
): Promise<ReadResourceResult> {
  const url = URL.parse(uri);
  if (url?.protocol !== scheme) throw new ResourceNotFoundError(uri);
  const { offset, limit, sessionId } = rangeOf(url, uri, ownSessionId);
  const output = `${scheme}${url.pathname}`;
  const range = { offset: BigInt(offset), limit: Math.min(limit ?? maxRangeBytes, maxRangeBytes) };
  const read = await tools
    .readToolOutput({ sessionId, output, range: { case: "bytes", value: range } })
    .catch((error: unknown) => {
      throw ["NO_SUCH_OUTPUT", "NO_SUCH_SESSION", "INVALID_RANGE"].includes(reasonOf(error) ?? "")
        ? new ResourceNotFoundError(uri)
        : error;
    });
  const text = textIn(read, limit ?? defaultTextBytes);
  if (text === undefined) return { contents: [await blobContent(tools, uri, { read, sessionId, output, limit })] };
  const next = offset + Buffer.byteLength(text);
  const isEnd = BigInt(next) >= read.totalBytes;
  return {
    contents: [
      {
        uri,
        mimeType: "text/plain",
        text,
        _meta: {
          "toolgate/totalBytes": Number(read.totalBytes),
          ...(!isEnd && { "toolgate/next": rangeUri(output, next, url.searchParams.get("session")) }),
        },
      },
    ],
  };
}

/** Reads an output up to a size; throws if it is larger. */
export async function readWholeOutput(
  { tools }: Pick<ToolgateApi, "tools">,
  sessionId: string,
  output: string,
  maxBytes: number,
): Promise<Buffer> {
  const pieces: Uint8Array[] = [];
  for (let offset = 0; ; ) {
    const value = { offset: BigInt(offset), limit: maxRangeBytes };
    const read = await tools.readToolOutput({ sessionId, output, range: { case: "bytes", value } });
    pieces.push(read.data);
    offset += read.data.length;
    if (read.end) return Buffer.concat(pieces);
    if (offset >= maxBytes || read.data.length === 0) throw new Error(`${output} has over ${maxBytes} bytes`);
  }
}

async function blobContent(
  tools: ToolgateApi["tools"],
  uri: string,
  given: { read: ReadToolOutputResponse; sessionId: string; output: string; limit: number | undefined },
) {
  const { read, sessionId, output, limit } = given;
  const isWhole = limit === undefined && read.offset === 0n && read.totalBytes <= BigInt(maxFileBytes) && !read.end;
  const data = isWhole ? await readWholeOutput({ tools }, sessionId, output, maxFileBytes) : Buffer.from(read.data);
  return {
    uri,
    mimeType: "application/octet-stream",
    blob: data.toString("base64"),
    _meta: { "toolgate/totalBytes": Number(read.totalBytes) },
  };
}

function rangeOf({ searchParams }: URL, uri: string, ownSessionId: string) {
  const number = (name: string) => {
    const text = searchParams.get(name);
    if (text === null) return undefined;
    if (!/^\d{1,15}$/.test(text)) throw new ResourceNotFoundError(uri);
    return Number(text);
  };
  const limit = number("limit");
  return {
    offset: number("offset") ?? 0,
    limit: limit === 0 ? undefined : limit,
    sessionId: searchParams.get("session") ?? ownSessionId,
  };
}

function rangeUri(output: string, offset: number, session: string | null): string {
  return `${output}?${new URLSearchParams({ offset: String(offset), ...(session !== null && { session }) })}`;
}

/** Returns the beginning of a range as text, cut at a whole character; undefined if it is not text. */
function textIn({ data, end }: ReadToolOutputResponse, maxBytes: number): string | undefined {
  const isCut = data.length > maxBytes || !end;
  const bytes = data.subarray(0, maxBytes);
  for (let dropped = 0; dropped <= (isCut ? 3 : 0); dropped += 1) {
    try {
      const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(
        bytes.subarray(0, bytes.length - dropped),
      );
      return text.includes("\0") ? undefined : text;
    } catch {
      // The range ends within a character, or it is not text.
    }
  }
  return undefined;
}
