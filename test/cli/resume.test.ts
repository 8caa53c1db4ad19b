import { Code, ConnectError } from "@connectrpc/connect";
import { describe, expect, test } from "vitest";
import { type Position, type Resumable, resume, withoutEnd } from "../../src/cli/connection/resume.ts";
import { refused } from "./fake-server.ts";

const frame = (lastSeq: number, storeId = "") => ({ lastSeq: BigInt(lastSeq), storeId });
type Frame = ReturnType<typeof frame>;
const cut = new ConnectError("connection reset", Code.Unavailable);

/** Opens each script once: what it yields, then how it ends. */
function scripted(...scripts: readonly (Frame | Error)[][]) {
  const opened: Position[] = [];
  const words: string[] = [];
  const options: Resumable<Frame> = {
    start: { afterSeq: 0n, storeId: "" },
    signal: new AbortController().signal,
    isLast: ({ lastSeq }) => lastSeq === 9n,
    onCut: (text) => words.push(text),
    pauseMs: (attempt) => (attempt < 2 ? 0 : undefined),
    async *open(from) {
      const script = scripts[opened.length] ?? [cut];
      opened.push({ ...from });
      for (const step of script) {
        if (step instanceof Error) throw step;
        yield step;
      }
    },
  };
  return { opened, words, options };
}

async function read(options: Resumable<Frame>): Promise<number[]> {
  const numbers: number[] = [];
  for await (const { lastSeq } of resume(options)) numbers.push(Number(lastSeq));
  return numbers;
}

describe("resume", () => {
  test("goes on after the last number, in the same store, and ends with the last frame", async () => {
    const { opened, words, options } = scripted([frame(1, "s1"), frame(2), cut], [frame(3), frame(9), frame(10)]);
    expect(await read(options)).toEqual([1, 2, 3, 9]);
    expect(opened).toEqual([
      { afterSeq: 0n, storeId: "" },
      { afterSeq: 2n, storeId: "s1" },
    ]);
    expect(words).toEqual(["connection lost (connection reset); trying again in 0 ms"]);
  });

  test("a stream that ends before its last frame is opened again", async () => {
    const { options } = scripted([frame(1, "s1")], [frame(9)]);
    expect(await read(options)).toEqual([1, 9]);
  });

  test("gives up at once on a server that was never reached", async () => {
    const { opened, options } = scripted([cut]);
    await expect(read(options)).rejects.toBe(cut);
    expect(opened).toHaveLength(1);
  });

  test("gives up when the pauses are used up; a frame gives them back", async () => {
    const { opened, options } = scripted([frame(1, "s1"), cut], [cut], [frame(2), cut], [cut], [cut]);
    await expect(read(options)).rejects.toBe(cut);
    expect(opened).toHaveLength(5);
  });

  test("without end, the pauses grow to eight seconds and stay there", () => {
    expect([0, 1, 2, 3, 4, 5, 6, 1_000].map(withoutEnd)).toEqual([250, 500, 1_000, 2_000, 4_000, 8_000, 8_000, 8_000]);
  });

  test("does not repeat what the server refused", async () => {
    const refusal = refused(Code.NotFound, "NO_SUCH_SESSION", "session ses_1 is not known");
    const { opened, options } = scripted([frame(1, "s1"), refusal], [frame(9)]);
    await expect(read(options)).rejects.toBe(refusal);
    expect(opened).toHaveLength(1);
  });

  test("comes again when the server says that it is going away", async () => {
    const { options } = scripted([frame(1, "s1"), refused(Code.Unavailable, "DRAINING", "going away")], [frame(9)]);
    expect(await read(options)).toEqual([1, 9]);
  });

  test("stops when the server comes back with another store", async () => {
    const { options } = scripted([frame(1, "s1"), cut], [frame(1, "s2"), frame(9)]);
    await expect(read(options)).rejects.toMatchObject({
      exitCode: 5,
      message: expect.stringContaining("another store"),
    });
  });

  test("ends with the reason of its signal", async () => {
    const leave = new AbortController();
    const { options } = scripted([frame(1, "s1"), cut]);
    const frames = resume({
      ...options,
      signal: leave.signal,
      pauseMs: () => 60_000,
      onCut: () => leave.abort(new Error("left")),
    });
    await frames.next();
    await expect(frames.next()).rejects.toThrow(/left|aborted/);
  });
});
