import type { Signal } from "@preact/signals";
import { PermissionAction, type PermissionRule } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { actionWord } from "../../view/decisions.ts";

/** A rule as it is typed. */
export type TypedRule = Pick<PermissionRule, "permission" | "pattern" | "action">;

/** The fields of a hypothetical rule, to see its effect. */
export function RuleInput({ rule }: { rule: Signal<TypedRule> }) {
  const set = (change: Partial<TypedRule>) => {
    rule.value = { ...rule.value, ...change };
  };
  return (
    <details class="what-if">
      <summary>Try one more rule</summary>
      <div class="pickers">
        <label class="labelled">
          <span>Rule’s permission</span>
          <input
            class="mono"
            autocapitalize="off"
            value={rule.value.permission}
            onInput={({ currentTarget }) => set({ permission: currentTarget.value })}
          />
        </label>
        <label class="labelled">
          <span>Rule’s pattern</span>
          <input
            class="mono"
            autocapitalize="off"
            placeholder="npm *"
            value={rule.value.pattern}
            onInput={({ currentTarget }) => set({ pattern: currentTarget.value })}
          />
        </label>
        <label class="labelled">
          <span>Rule’s action</span>
          <select
            value={String(rule.value.action)}
            onChange={({ currentTarget }) =>
              set({ action: actions.find((action) => String(action) === currentTarget.value) ?? rule.value.action })
            }
          >
            {actions.map((action) => (
              <option key={action} value={String(action)}>
                {actionWord(action)}
              </option>
            ))}
          </select>
        </label>
      </div>
    </details>
  );
}

const actions = [PermissionAction.ALLOW, PermissionAction.ASK, PermissionAction.DENY] as const;
