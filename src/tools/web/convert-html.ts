import { once } from "node:events";
import { Worker } from "node:worker_threads";
import { assets } from "../../core/assets.ts";
import { ToolFailure } from "../../tool/errors.ts";

const maxMs = 5_000;
const maxHeapMb = 512;

/** Converts a page to Markdown or plain text, in a worker with limits on time and memory, since pages are untrusted. */
export async function convertHtml(html: string, format: "markdown" | "text", signal: AbortSignal): Promise<string> {
  const worker = new Worker(assets.htmlWorker, {
    env: {},
    execArgv: [],
    resourceLimits: { maxOldGenerationSizeMb: maxHeapMb },
  });
  let late: AbortSignal | undefined;
  try {
    // The limit begins when the thread has loaded: on a busy machine that alone may take seconds.
    await once(worker, "message", { signal });
    late = AbortSignal.timeout(maxMs);
    worker.postMessage({ html, format });
    const [text] = await once(worker, "message", { signal: AbortSignal.any([signal, late]) });
    return text;
  } catch (cause) {
    signal.throwIfAborted();
    const why = late?.aborted
      ? `takes longer than ${maxMs / 1_000} s`
      : "failed, perhaps because it is nested too deeply";
    throw new ToolFailure(`Converting the page to ${format} ${why}. Call again with format html.`, { cause });
  } finally {
    await worker.terminate();
  }
}
