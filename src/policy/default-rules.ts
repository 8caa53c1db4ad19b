import { fromConfig, type Rule } from "./rules.ts";

/** The rules built into the server: looking inside the workspace is allowed, secrets are asked about, all else matches none. */
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
    // Each call of a batch asks for itself.
    batch: "allow",
  },
  "",
);
