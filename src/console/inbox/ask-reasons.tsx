import { PermissionAction, type PermissionDecision } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { PermissionRequest } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { onceWords } from "../../view/asks.ts";
import { actionWord, decisionWords, layerWords, ruleWords } from "../../view/decisions.ts";
import { capitalized } from "../../view/words.ts";
import { Pre } from "../parts/long-text.tsx";
import { visibleLines, visibleText } from "../parts/visible-text.ts";
import { PermissionMark } from "./permission-mark.tsx";

/** Patterns beyond this count are folded. */
const shownAtOnce = 50;

/** True if some patterns of an ask are folded. */
export const hasMorePatterns = ({ patterns }: PermissionRequest): boolean => patterns.length > shownAtOnce;

/** The patterns of an ask (for a command line its commands), each with its decision and reason. */
export function AskReasons({
  asks,
  isOpen,
  onOpen,
}: {
  asks: readonly PermissionRequest[];
  /** Opens what is folded. */
  isOpen: boolean;
  /** Called with an ask whose fold is open. */
  onOpen: (ask: PermissionRequest) => void;
}) {
  return (
    <section class="block">
      <h2>Why this needs approval</h2>
      <ul class="reasons">
        {asks.flatMap((ask) => {
          const pieces = piecesOf(ask);
          const rest = pieces.length - shownAtOnce;
          return [
            ...pieces
              .slice(0, shownAtOnce)
              .map((piece) => (
                <Piece key={`${ask.id} ${piece.text}`} ask={ask} piece={piece} isMixed={asks.length > 1} />
              )),
            hasMorePatterns(ask) && (
              <li key={`${ask.id} rest`}>
                <details open={isOpen} onToggle={({ currentTarget }) => currentTarget.open && onOpen(ask)}>
                  <summary>{rest} more</summary>
                  <Pre
                    text={pieces
                      .slice(shownAtOnce)
                      .map(({ text }) => text)
                      .join("\n")}
                  />
                </details>
              </li>
            ),
          ];
        })}
      </ul>
    </section>
  );
}

interface PieceOfAsk {
  text: string;
  decision: PermissionDecision | undefined;
}

/** Each pattern in its display form, with its decision. */
function piecesOf({ patterns, display, decisions }: PermissionRequest): readonly PieceOfAsk[] {
  const byPattern = new Map(decisions.map((decision) => [decision.pattern, decision]));
  return patterns.map((pattern, i) => ({
    text: visibleLines(display[i] ?? pattern),
    decision: byPattern.get(pattern),
  }));
}

function Piece({
  ask,
  piece: { text, decision },
  isMixed,
}: {
  ask: PermissionRequest;
  piece: PieceOfAsk;
  /** True if the call asks for several kinds of permission. */
  isMixed: boolean;
}) {
  const action = decision?.action ?? PermissionAction.ASK;
  return (
    <li class="reason" data-action={actionWord(action)}>
      <div class="reason-head">
        {isMixed && <PermissionMark kind={ask.permission} />}
        <Pre text={text} look="reason-text" />
        <span class="verdict">{action === PermissionAction.ALLOW ? "allowed" : "needs approval"}</span>
      </div>
      {decision && (
        <p class="reason-why">
          {decisionWords(decision, visibleText)}
          {onceWords(ask) !== "" && ` ${capitalized(onceWords(ask))}.`}
          <Matches decision={decision} />
        </p>
      )}
    </li>
  );
}

/** The rules that matched, if there are several. */
export function Matches({ decision: { matches } }: { decision: PermissionDecision }) {
  if (matches.length < 2) return null;
  return (
    <details>
      <summary>{matches.length} rules match</summary>
      <ol>
        {matches.map((match, i) => (
          <li key={i}>
            {layerWords(match.layer)}: <code>{match.rule && ruleWords(match.rule, visibleText)}</code>
            {match.decided && <b> decides</b>}
            {match.unmet !== "" && ` does not count: ${visibleText(match.unmet)}`}
          </li>
        ))}
      </ol>
    </details>
  );
}
