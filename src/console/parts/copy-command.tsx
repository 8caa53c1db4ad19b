import { useSignal } from "@preact/signals";
import { shellCommand } from "../../view/words.ts";
import { visibleText } from "./visible-text.ts";

/** The equivalent command line, with a button to copy it. */
export function CopyCommand({ words }: { words: readonly string[] }) {
  const isCopied = useSignal(false);
  const line = shellCommand(["toolgate", ...words]);
  const copy = async () => {
    await navigator.clipboard.writeText(line);
    isCopied.value = true;
  };
  return (
    <p class="copy-command">
      <code>{visibleText(line)}</code>
      {/* Browsers offer no clipboard to pages over plain HTTP from another machine. */}
      {"clipboard" in navigator && (
        <button type="button" class="quiet" onClick={() => void copy()} onBlur={() => (isCopied.value = false)}>
          {isCopied.value ? "Copied" : "Copy"}
          <span class="unseen"> the command</span>
        </button>
      )}
    </p>
  );
}
