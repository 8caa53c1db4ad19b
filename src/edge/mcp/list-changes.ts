import type { ServerEventBus } from "@modelcontextprotocol/server";
import { watchToolList } from "../../agents/mcp/watch-tool-list.ts";

/** The list of tools that a stream of changes is about. */
export interface WatchedList extends Pick<Parameters<typeof watchToolList>[0], "api" | "session"> {
  /** Identifies the list: streams with the same key share one watch. */
  readonly key: string;
}

/** Creates the source of list changes for the streams that subscribe to them; `listOf` returns the list of the current request. */
export function createListChanges(listOf: () => WatchedList): ServerEventBus {
  const watches = new Map<string, { listeners: Set<() => void>; stop: AbortController }>();
  return {
    publish: () => undefined,
    subscribe(listener) {
      const { key, api, session } = listOf();
      const known = watches.get(key);
      const watch = known ?? { listeners: new Set(), stop: new AbortController() };
      const notify = () => listener({ kind: "tools_list_changed" });
      watch.listeners.add(notify);
      if (known === undefined) {
        const onChange = async () => {
          for (const report of watch.listeners) report();
        };
        watches.set(key, watch);
        void watchToolList({ api, session, onChange }, watch.stop.signal);
      }
      return () => {
        watch.listeners.delete(notify);
        if (watch.listeners.size > 0) return;
        watch.stop.abort();
        if (watches.get(key) === watch) watches.delete(key);
      };
    },
  };
}
