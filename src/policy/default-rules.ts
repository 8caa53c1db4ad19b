import { fromConfig, type Rule } from "./rules.ts";

/** Built-in rules: read-only tools are allowed inside the workspace, `.env` files ask. Anything else matches no rule, and asks. */
export const defaultRules: readonly Rule[] = fromConfig(
  {
    read: {
      "*": "allow",
      "*.env": "ask",
      "*.env.*": "ask",
      ".envrc": "ask",
      "*/.envrc": "ask",
      "*.env.example": "allow",
    },
    glob: "allow",
    grep: "allow",
    list: "allow",
    lsp: "allow",
    "todo*": "allow",
    question: "allow",
    skill: "allow",
    // Each call of a batch is judged separately.
    batch: "allow",
  },
  "",
);
