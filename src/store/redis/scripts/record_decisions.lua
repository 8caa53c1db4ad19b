-- record_decisions: adds decisions to the audit of a tree, or of a root that is no tree.
-- KEYS   op, tree, audit
-- ARGV   nothing but the decisions
-- Output "recorded"
return commit('recorded')
