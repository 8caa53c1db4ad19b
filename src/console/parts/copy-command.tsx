import { useSignal } from "@preact/signals";
import { shellCommand } from "../../view/words.ts";
import { visibleText } from "./visible-text.ts";

/** The equivalent command line, with a button to copy it. */
export function CopyCommand({ words }: { words: readonly string[] }) {
  const line = shellCommand(["toolgate", ...words]);
  return (
    <p class="copy-command">
      <code>{visibleText(line)}</code>
      <CopyButton text={line} what="the command" />
    </p>
  );
}

/** Copies a text. */
export function CopyButton({ text, what }: { text: string; what: string }) {
  const isCopied = useSignal(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    isCopied.value = true;
  };
  // Browsers offer no clipboard to pages over plain HTTP from another machine.
  if (!("clipboard" in navigator)) return null;
  return (
    <button type="button" class="quiet" onClick={() => void copy()} onBlur={() => (isCopied.value = false)}>
      {isCopied.value ? "Copied" : "Copy"}
      <span class="unseen"> {what}</span>
    </button>
  );
}
