import { connectors } from "./connectors.ts";
import { testHook } from "./hook-rows.ts";

testHook("the hook of GitHub Copilot CLI", connectors["the hook of GitHub Copilot CLI"]);
