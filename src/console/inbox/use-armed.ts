import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { inertMs } from "../../view/asks.ts";

/** Whether what `key` names has been in sight long enough; it begins again when that changes, or the page was out of sight. */
export function useArmed(key: string): boolean {
  const armed = useSignal("");
  useEffect(() => {
    let timer = 0;
    const begin = () => {
      clearTimeout(timer);
      armed.value = "";
      if (document.hidden) return;
      timer = window.setTimeout(() => {
        armed.value = key;
      }, inertMs);
    };
    begin();
    document.addEventListener("visibilitychange", begin);
    return () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", begin);
    };
  }, [key]);
  // What is armed is this very key, not the one of the render before.
  return armed.value === key;
}
