import { connectors } from "./connectors.ts";
import { testHook } from "./hook-rows.ts";

testHook("the permission prompt tool of Claude Code", connectors["the permission prompt tool of Claude Code"]);
