import type { JsonObject } from "@bufbuild/protobuf";
import type { RunUpdate } from "../../agents/runner.ts";

type Progress = Omit<Extract<RunUpdate, { type: "progress" }>, "type">;

const everyMs = 1_000;
const maxTitleLength = 200;
const maxTextLength = 2_000;

/** Shows what a subagent does now, at most once a second, however often it reports. */
export function createShownProgress(show: (shown: { title?: string; metadata?: JsonObject }) => void) {
  let timer: NodeJS.Timeout | undefined;
  let latest: Progress = {};
  let isStale = false;
  let isStopped = false;

  function emit(): void {
    isStale = false;
    timer = setTimeout(() => {
      timer = undefined;
      if (isStale) emit();
    }, everyMs);
    const { title = "", text = "" } = latest;
    show({ ...(title !== "" && { title }), ...(text !== "" && { metadata: { progress: text } }) });
  }

  return {
    show({ title = "", text = "" }: Progress): void {
      latest = {
        title: title === "" ? (latest.title ?? "") : title.slice(0, maxTitleLength).toWellFormed(),
        text: text === "" ? (latest.text ?? "") : text.slice(-maxTextLength).toWellFormed(),
      };
      isStale = true;
      if (timer === undefined && !isStopped) emit();
    },
    stop(): void {
      isStopped = true;
      clearTimeout(timer);
    },
  };
}
